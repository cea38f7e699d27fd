"""OpenAI's completions and chat completions over text models, as in Triton's OpenAI-compatible frontend."""
