"""Lightning: `lightning_loop.py STEPS BATCH ACCUMULATION`."""

import sys

import lightning
import torch
from works import make_model, make_samples

steps, batch, accumulation = map(int, sys.argv[1:4])


class Module(lightning.LightningModule):
    """The tiny model."""

    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, inputs, number):
        """Return the loss of a batch."""
        return self.model(**inputs).loss

    def validation_step(self, inputs, number):
        """Compute the loss of a batch."""
        self.model(**inputs)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


samples = make_samples(steps * batch * accumulation)
trainer = lightning.Trainer(
    max_steps=steps,
    accumulate_grad_batches=accumulation,
    val_check_interval=accumulation * 2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
loaders = [torch.utils.data.DataLoader(one, batch) for one in (samples, samples[:8])]
trainer.fit(Module(), *loaders)
