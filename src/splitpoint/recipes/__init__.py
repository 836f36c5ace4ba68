"""Launch files for a chosen deployment: one folder of scripts per engine, ready to run."""
