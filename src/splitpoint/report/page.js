"use strict";
(() => {
  // Neutral parts take the text's colour, so charts follow the page's theme without being redrawn.
  const ink = "currentColor";
  const config = {
    background: "transparent",
    font: "system-ui, sans-serif",
    axis: {
      gridColor: ink, gridOpacity: 0.14, domainColor: ink, domainOpacity: 0.45, tickColor: ink,
      tickOpacity: 0.45, labelColor: ink, titleColor: ink, titleFontWeight: "normal",
    },
    legend: { labelColor: ink, orient: "top", labelLimit: 320, columns: innerWidth < 560 ? 2 : 4 },
    text: { color: ink },
    rule: { color: ink },
    view: { stroke: null },
  };
  const root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;

  for (const chart of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(document.getElementById(chart.dataset.spec).textContent);
    window.vegaEmbed(chart, spec, {
      config,
      renderer: "svg",
      ast: true, // no eval: the page forbids it
      actions: { export: true, source: false, compiled: false, editor: false },
    });
  }

  const button = document.getElementById("theme");
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    label();
  });
  label();
  // Print what is folded away, too.
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("main details")) folded.open = true;
  });
})();
