"""Images and speech: data, and the tasks that train on them."""
