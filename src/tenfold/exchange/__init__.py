"""Weights from elsewhere and for elsewhere: Hugging Face both ways, llm.c, nanoGPT and build-nanogpt in, GGUF out."""
