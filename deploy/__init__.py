"""How Fieldcast is run: the `fieldcast` command, the local stack and its embedded server. May import every part."""
