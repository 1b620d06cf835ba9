"""Model data on devices: homes, and optimizer steps in parts (docs/devices.md)."""
