"""GPT-2: its configuration, layers, attention kernels, loss head and key-value cache."""
