"""A recurrent actor-critic policy trained with the clipped objective of PPO."""
