"""The reward laboratory: is a reward to be trusted? Found out before any training, by `python -m grpo_exp reward`."""
