"""Read texts, and make batches of samples: public helpers for data plugins, which may change
before 1.0.

A plugin whose samples are rows of tokens returns a `token_batches.TokenDataset` from `load_data`,
and `batches_of` and `evaluation_batches_of` make its batches. One with samples of another kind
hands a function that makes a batch of some of them to `sample_batches.micro_batches` and
`SampleEvaluation`. `data_plugins` has a base class for either, with the hooks that do so. Both
divide samples among ranks, steps and what is held out as `batch_plan` says. `made_up` makes tokens
up; `text_sources` finds and reads files of text; `tokenizer_options` are the options of a plugin
that tokenizes, and `tokenizing` trains or loads the tokenizer that they name.
"""
