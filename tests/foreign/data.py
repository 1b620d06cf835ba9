"""Synthetic data, and small untrained models with a tokenizer, in the forms in which programs read them from disk."""
import json
import os
import pickle
import struct

import numpy

WORDS = [f"word{number}" for number in range(200)]


def sentences(count, seed, longest=24):
    chance = numpy.random.default_rng(seed)
    return [" ".join(WORDS[int(w)] for w in chance.zipf(1.5, int(length)) % len(WORDS)) for length in chance.integers(4, longest, count)]


def json_lines(path, rows):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def tokenizer(folder):
    """Words are tokens. The chat template is the least that trl asks for."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(special + WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
                                   cls_token="<s>", sep_token="</s>", mask_token="<mask>", model_max_length=64)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} </s> {% endfor %}"
    fast.save_pretrained(folder)
    return fast


def bert(folder):
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    tokens = tokenizer(folder)
    BertModel(BertConfig(vocab_size=len(tokens), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                         max_position_embeddings=64, pad_token_id=0)).save_pretrained(folder)


def llama(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    tokens = tokenizer(folder)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                 intermediate_size=128, max_position_embeddings=128, pad_token_id=0, bos_token_id=2, eos_token_id=3)).save_pretrained(folder)


def classified(folder):
    texts = sentences(96, 1)
    rows = [{"text": text, "label": len(text.split()) % 3} for text in texts]
    json_lines(os.path.join(folder, "train.jsonl"), rows[:72])
    json_lines(os.path.join(folder, "test.jsonl"), rows[72:])


def plain_text(folder):
    json_lines(os.path.join(folder, "train.jsonl"), [{"text": text} for text in sentences(64, 2)])


ACCURACY = '''"""The metric that scripts ask for by this name; they would download it."""
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        numbers = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="the part that is right", citation="", features=numbers)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references, strict=True)) / len(references)}
'''


def scripts(folder):
    """What the example scripts of transformers read: files whose names end in .json, a line for each sample, and a metric."""
    for name, maker in (("texts", plain_text), ("classes", classified)):
        maker(os.path.join(folder, name))
        for file in os.listdir(os.path.join(folder, name)):
            os.rename(os.path.join(folder, name, file), os.path.join(folder, name, file.removesuffix("l")))
    os.makedirs(os.path.join(folder, "accuracy"))
    with open(os.path.join(folder, "accuracy", "accuracy.py"), "w") as file:
        file.write(ACCURACY)


def preferences(folder):
    prompts, good, bad = sentences(48, 3), sentences(48, 4), sentences(48, 5)
    rows = [{"prompt": p + " ", "chosen": g, "rejected": b} for p, g, b in zip(prompts, good, bad)]
    json_lines(os.path.join(folder, "train.jsonl"), rows)


def pairs(folder):
    chance = numpy.random.default_rng(6)
    rows = [{"sentence1": a, "sentence2": b, "score": float(chance.random())} for a, b in zip(sentences(64, 7), sentences(64, 8))]
    json_lines(os.path.join(folder, "train.jsonl"), rows)


def images(folder, classes=4, each=16, size=64):
    from PIL import Image

    chance = numpy.random.default_rng(9)
    for split, count in (("train", each), ("val", each // 4)):
        for label in range(classes):
            os.makedirs(os.path.join(folder, split, f"class{label}"), exist_ok=True)
            for number in range(count):
                pixels = chance.integers(0, 128, (size, size, 3)) + 30 * label
                Image.fromarray(pixels.astype("uint8")).save(os.path.join(folder, split, f"class{label}", f"{number}.png"))


def mnist(folder):
    """As torchvision keeps it, of 640 and 128 images."""
    raw = os.path.join(folder, "MNIST", "raw")
    os.makedirs(raw, exist_ok=True)
    chance = numpy.random.default_rng(10)
    for name, count in (("train", 640), ("t10k", 128)):
        labels = chance.integers(0, 10, count).astype("uint8")
        pixels = (chance.integers(0, 100, (count, 28, 28)) + labels[:, None, None] * 12).astype("uint8")
        with open(os.path.join(raw, f"{name}-images-idx3-ubyte"), "wb") as file:
            file.write(struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes())
        with open(os.path.join(raw, f"{name}-labels-idx1-ubyte"), "wb") as file:
            file.write(struct.pack(">II", 2049, count) + labels.tobytes())


def characters(folder):
    """A text, and the same as numbers of its characters with the table of them (nanoGPT's form)."""
    os.makedirs(folder, exist_ok=True)
    text = "O God, O God!\n" + "\n".join(sentences(400, 11))
    with open(os.path.join(folder, "input.txt"), "w") as file:
        file.write(text)
    letters = sorted(set(text))
    number = {letter: index for index, letter in enumerate(letters)}
    ids = numpy.array([number[letter] for letter in text], dtype=numpy.uint16)
    ids[: len(ids) * 9 // 10].tofile(os.path.join(folder, "train.bin"))
    ids[len(ids) * 9 // 10 :].tofile(os.path.join(folder, "val.bin"))
    with open(os.path.join(folder, "meta.pkl"), "wb") as file:
        pickle.dump({"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": number}, file)


def wikitext(folder):
    os.makedirs(folder, exist_ok=True)
    for split, count, seed in (("train", 80, 12), ("valid", 20, 13), ("test", 20, 14)):
        with open(os.path.join(folder, f"{split}.txt"), "w") as file:
            file.writelines(f" {line} \n" for line in sentences(count, seed))
