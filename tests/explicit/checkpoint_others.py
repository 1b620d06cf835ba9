"""Checkpoints that Hugging Face and torch.distributed.checkpoint (DCP) read, and theirs."""
import itertools
import os
import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from castor.checkpoint_io import GeneralCheckpointIO, from_dcp, to_dcp
from checkpoint_models import Mixed, equal
from found import found, raised

folder = tempfile.mkdtemp(prefix="castor-others-")
disk = GeneralCheckpointIO()


def at(*names):
    return os.path.join(folder, *map(str, names))


small = {"vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
kinds = {"gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2)),
         "bert": (BertForMaskedLM, BertConfig(intermediate_size=32, max_position_embeddings=16, **small))}
for kind, (cls, config) in kinds.items():
    for safe, shard in ((True, True), (False, True), (True, False), (False, False)):
        torch.manual_seed(5)
        model = cls(config).eval()
        place = at(f"{kind}-{safe}-{shard}")
        os.makedirs(place)
        disk.save_model(model, place, shard=shard, size_per_shard=0.01, use_safetensors=safe)
        config.save_pretrained(place)
        theirs, about = cls.from_pretrained(place, output_loading_info=True)
        tied = theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
        found(f"from_pretrained, {kind}, {safe}, {shard}", [equal(theirs, model), tied, *(sorted(about[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))])
    model.save_pretrained(at(f"{kind}-theirs"), max_shard_size="10KB")
    torch.manual_seed(6)
    ours = cls(config)
    disk.load_model(ours, at(f"{kind}-theirs"))
    found(f"of save_pretrained, {kind}", [equal(ours, model), len(os.listdir(at(f"{kind}-theirs"))) > 4])
    untied = cls(type(config).from_dict({**config.to_dict(), "tie_word_embeddings": False}))
    disk.load_model(untied, at(f"{kind}-True-True"))
    found(f"into an untied model, {kind}", equal(untied, model))

disk.save_model(Mixed(3), at("shards"), shard=True, prefix="p.", size_per_shard=0.004, use_safetensors=True)
to_dcp(at("shards"), at("dcp"), prefix="model.")
plain = Mixed(9)
dcp.load({"model": (state := plain.state_dict())}, checkpoint_id=at("dcp"), no_dist=True)
found("to DCP", equal(state, Mixed(3)))
dcp.save({"model": Mixed(5).state_dict(), "step": 3}, checkpoint_id=at("theirs"), no_dist=True)
for safe, shard in itertools.product((False, True), (False, True)):
    path = at(f"from-{safe}-{shard}" + ("" if shard else ".safetensors" if safe else ".bin"))
    from_dcp(at("theirs"), path, shard=shard, prefix="model.", size_per_shard=0.004, use_safetensors=safe)
    plain = Mixed(9)
    disk.load_model(plain, path)
    found(f"from DCP, {safe}, {shard}", equal(plain, Mixed(5)))
found("DCP with more than a model", raised(RuntimeError, from_dcp, at("theirs"), at("no")).replace(folder, ""))
found("DCP without that prefix", raised(RuntimeError, from_dcp, at("theirs"), at("no"), prefix="no.").replace(folder, ""))
found("DCP as a checkpoint", raised(RuntimeError, disk.load_model, plain, at("theirs")).replace(folder, ""))
sizes = nn.Linear(24, 40)
dcp.save(sizes.state_dict(), storage_writer=HuggingFaceStorageWriter(at("hf")), no_dist=True)
dcp.save(sizes.state_dict(), storage_writer=HuggingFaceStorageWriter(at("hf-parts"), save_distributed=True), no_dist=True)
from_dcp(at("hf-parts"), at("hf-whole"))
for name in ("hf", "hf-whole"):
    plain = nn.Linear(24, 40)
    disk.load_model(plain, at(name))
    found(f"of DCP's writer for Hugging Face, {name}", equal(plain, sizes))
shutil.rmtree(folder)
