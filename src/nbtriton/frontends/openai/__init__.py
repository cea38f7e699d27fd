"""OpenAI's completions and chat over text models, as Triton's OpenAI-compatible frontend has them."""
