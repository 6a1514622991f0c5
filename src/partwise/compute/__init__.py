"""Runtime settings, backends of layers, and decoding with the C++ kernel."""
