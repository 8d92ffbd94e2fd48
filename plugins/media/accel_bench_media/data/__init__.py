"""Images, images with texts, and speech: made up, drawn or spoken on this machine."""
