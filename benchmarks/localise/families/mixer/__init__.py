"""An image classifier of mixers and gated mlps, distilled from a teacher, with cutmix."""
