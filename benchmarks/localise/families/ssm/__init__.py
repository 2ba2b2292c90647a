"""A state-space model, as Mamba. Held out: nobody looks at its cases while tuning."""
