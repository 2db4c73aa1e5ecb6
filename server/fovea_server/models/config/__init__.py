"""config.pbtxt: read, completed from the engine, and checked."""
