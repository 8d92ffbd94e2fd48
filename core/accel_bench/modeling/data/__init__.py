"""Public helpers for data plugins, which read texts and make batches; may change before 1.0.

A plugin whose samples are rows of tokens returns a `token_batches.TokenDataset` from `load_data`,
and `batches_of` and `evaluation_batches_of` make its batches. A plugin with samples of another kind
passes a collate function to `sample_batches.micro_batches` and `SampleEvaluation`.
`data_plugins` has a base class for each. Both divide samples among ranks, steps and held-out
samples by `batch_plan`. `made_up` makes synthetic tokens; `text_sources` finds and reads files of
text; `tokenizer_options` are the options of a plugin that tokenizes, and `tokenizing` trains or
loads the tokenizer that they name.
"""
