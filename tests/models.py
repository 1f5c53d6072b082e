"""Configurations of models that tests share. No imports: tests of ranks have little else there."""

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
"""A Llama with what a config.json must have: milliseconds for a step on a CPU."""
