"""Quantisers and reference dequantisers in numpy, one file per weight format."""
