"""Pages and terminal text made from an `Answer`: numbers as people read them, with origins."""
