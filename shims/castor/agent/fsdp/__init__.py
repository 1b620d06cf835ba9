"""CASTOR_PLUGIN=fsdp: PyTorch's fully_shard, applied to models that scripts wrap in DistributedDataParallel."""
