"""Which programs run, and what each mode must show."""
import os
from dataclasses import dataclass, field
from typing import Callable

import data

HERE = os.path.dirname(os.path.abspath(__file__))
OWN = os.path.join(HERE, "programs")

# mode: (ranks, options of castor run, who starts the ranks)
NPROC, DDP, ALONE = "castor", "torchrun", "nobody"
ON_DISK = ["CASTOR_CHUNK_SIZE=64K", "CASTOR_PLACEMENT=static", "CASTOR_SHARD_PARAM_FRAC=1", "CASTOR_OFFLOAD_PARAM_FRAC=1", "CASTOR_OFFLOAD_OPTIM_FRAC=1"]


def chosen(settings):
    return [word for setting in settings for word in ("--set", setting)]


def options(plugin, *settings):
    return ["--plugin", plugin, *chosen(settings)]


@dataclass(frozen=True)
class Mode:
    name: str
    ranks: int
    starts: str
    options: list
    divides: bool = False  # the model, and not the batch

    @property
    def exact(self):
        return self.starts != NPROC and not self.divides

    @property
    def splits(self):
        """Batches, of which a program sees a rank's part."""
        return self.starts == NPROC and not self.divides


MODES = {mode.name: mode for mode in (
    Mode("--nproc 2, gemini", 2, NPROC, options("gemini")),
    Mode("--nproc 4, zero1", 4, NPROC, options("zero1")),
    Mode("DDP, gemini", 2, DDP, options("gemini")),
    Mode("one process, on disk", 1, ALONE, options("gemini", *ON_DISK)),
    Mode("--nproc 2, TP", 2, NPROC, options("hybrid", "CASTOR_TP=2"), divides=True),
    Mode("--nproc 2, PP", 2, NPROC, options("hybrid", "CASTOR_PP=2", "CASTOR_MICROBATCHES=4"), divides=True),
    Mode("DDP, PP", 2, DDP, options("hybrid", "CASTOR_PP=2", "CASTOR_MICROBATCHES=4"), divides=True),
)}
SPLIT, DIVIDED = ("--nproc 2, gemini", "--nproc 4, zero1"), ("--nproc 2, TP", "--nproc 2, PP")
SINGLE = *SPLIT, "one process, on disk", *DIVIDED
OF_RANKS = "DDP, gemini", "DDP, PP"


@dataclass(frozen=True)
class Program:
    name: str
    source: str  # the package of PyPI that it shows, or the repository that it is part of
    path: str  # of the program, below the folder `programs`, a package's or a repository's
    arguments: str = ""
    under: dict = field(default_factory=dict)  # arguments besides, by who starts the ranks
    data: tuple = ()  # (folder, maker) each
    modes: tuple = SINGLE
    refused: dict = field(default_factory=dict)  # by mode, the pattern of Castor's line
    noise: tuple = ()  # patterns of printed text and of files that no two runs have alike
    ignored: tuple = ()  # files whose bytes hold times or paths
    of_part: str = ""  # pattern of what it prints of a training batch, under --nproc of the rank's part (docs/single-process.md)
    aside: bool = False  # it draws its batches by hand and has no optimizer, so that Castor has nothing to do
    double: bool = False  # numbers are of double precision, where a run in float differs from itself by a rounding
    linear: bool = False  # SGD: the tighter tolerance
    inside: str = ""  # the folder that it starts in, below that of its data
    files: tuple = ()  # of its repository: they are copied to the folder that it starts in
    settings: tuple = ()  # Castor's
    seeded: bool = True  # by itself


def made(*pairs):
    return tuple(pairs)


TEXTS = made(("model", data.bert), ("data", data.classified))
TRAINER = ("training_args.bin", "README.md")  # the second tells how long it took
DIGITS = made(("data", data.mnist))
SMALL = "--epochs 2 --batch-size 64 --log-interval 1"
MINGPT = r"iter_dt [\d.]+ms"
PART = r"(?<=\[)\d+(?=/640)|(?<=Loss: )\d{3,}[\d.]+"  # they print len() of their part of a batch, and divide a sum by it
WORDS = "--data data --emsize 32 --nhid 32 --batch_size 8 --bptt 16 --epochs 2 --log-interval 1 --use-optimizer --lr 1e-3"
LASTED = r"ms/batch +[\d.]+", r"time: +[\d.]+s"
TRL = ("--dataset_name data --model_name_or_path model --output_dir out --use_cpu --report_to none --logging_steps 1 --dtype float32"
       " --per_device_train_batch_size 8 --max_steps 4 --learning_rate 1e-3 --bf16 False --seed 3")

# An example script of transformers, whose log lines begin with the time; checkpoints and summaries are the Trainer's.
SCRIPT = ("--model_name_or_path model --output_dir out --report_to none --use_cpu --per_device_train_batch_size 8 --max_steps 6 --logging_steps 1"
          " --learning_rate 1e-3 --seed 3 --do_train --do_eval")
LOGGED = (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+", r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d")

COUNTED = r"'(?:num_tokens|mean_token_accuracy|entropy|logits/|logps/|rewards/|accuracy|margin|\w+_reward)[^']*': '[^']*', "

PROGRAMS = [
    Program("trainer_bert", "transformers", "trainer_bert.py", data=TEXTS, ignored=(*TRAINER, "tokenizer.json"), modes=(*SINGLE, *OF_RANKS)),
    Program("trainer_masked", "transformers", "trainer_masked.py", data=made(("model", data.bert), ("data", data.plain_text)), ignored=TRAINER,
            linear=True),
    *(Program(path.rpartition("/")[2].removesuffix(".py"), "huggingface/transformers", "examples/pytorch/" + path, f"{SCRIPT} {arguments}",
              data=made(("model", model), (".", data.scripts)), noise=LOGGED, ignored=(*TRAINER, "tokenizer.json"))
      for path, model, arguments in (
          ("language-modeling/run_mlm.py", data.bert, "--train_file texts/train.json --validation_split_percentage 10 --max_seq_length 32"),
          ("text-classification/run_glue.py", data.bert,
           "--train_file classes/train.json --validation_file classes/test.json --max_seq_length 32"))),
    Program("peft_lora", "peft", "peft_lora.py", data=made(("model", data.llama), ("data", data.plain_text)),
            ignored=(*TRAINER, "tokenizer.json"),  # has truncation or not, as a rank found the data that the other had tokenized
            modes=(*SINGLE, *OF_RANKS)),
    Program("accelerate_loop", "accelerate", "accelerate_loop.py", data=TEXTS, modes=(*SINGLE, *OF_RANKS)),
    Program("lightning_gan", "lightning", "lightning_gan.py", data=made(("data", data.mnist))),
    Program("lightning_transformer", "lightning", "lightning_transformer.py", under={NPROC: "1", DDP: "2", ALONE: "1"}, modes=(*SINGLE, *OF_RANKS)),
    Program("timm_images", "timm", "timm_images.py", data=made(("data", data.images))),
    Program("timm_images, Mixup", "timm", "timm_images.py", "mix", data=made(("data", data.images)),
            refused={mode: "cannot be split" for mode in SPLIT}),  # each sample is mixed with one of the other part
    Program("cosine similarity", "sentence-transformers", "sentences.py", "CosineSimilarityLoss",
            data=made(("model", data.bert), ("data", data.pairs)), ignored=TRAINER),
    Program("multiple negatives", "sentence-transformers", "sentences.py", "MultipleNegativesRankingLoss",
            data=made(("model", data.bert), ("data", data.pairs)), ignored=TRAINER,
            refused={mode: "cannot be split|compares" for mode in SPLIT}),
    Program("CoSENT", "sentence-transformers", "sentences.py", "CoSENTLoss",
            data=made(("model", data.bert), ("data", data.pairs)), ignored=TRAINER,
            refused={mode: "cannot be split|compares" for mode in SPLIT}),
    Program("trl sft", "trl", "trl/scripts/sft.py", TRL, data=made(("model", data.llama), ("data", data.plain_text)), ignored=TRAINER,
            of_part=COUNTED),
    Program("trl sft, LoRA, packed", "trl", "trl/scripts/sft.py", TRL + " --packing --lora_dropout 0 --use_peft --lora_r 4 --max_length 32 --gradient_accumulation_steps 2",
            data=made(("model", data.llama), ("data", data.plain_text)), ignored=TRAINER, of_part=COUNTED),
    Program("trl dpo", "trl", "trl/scripts/dpo.py", TRL, data=made(("model", data.llama), ("data", data.preferences)), ignored=TRAINER, of_part=COUNTED),
    Program("trl reward", "trl", "trl/scripts/reward.py", TRL, data=made(("model", data.llama), ("data", data.preferences)), ignored=TRAINER, of_part=COUNTED),
    Program("nanoGPT", "karpathy/nanoGPT", "train.py",
            "--dataset=text --device=cpu --dtype=float32 --compile=False --eval_iters=2 --eval_interval=3 --block_size=32 --batch_size=8 --n_layer=2"
            " --n_head=2 --n_embd=64 --dropout=0.1 --gradient_accumulation_steps=2 --max_iters=6 --lr_decay_iters=6 --warmup_iters=1",
            data=made(("data/text", data.characters)), files=("configurator.py",), noise=(r"time [\d.]+ms, mfu [-\d.]+%",)),
    Program("minGPT adder", "karpathy/minGPT", "projects/adder/adder.py",
            "--data.ndigit=1 --trainer.max_iters=12 --trainer.num_workers=0 --trainer.device=cpu", noise=(MINGPT,)),
    Program("minGPT chargpt", "karpathy/minGPT", "projects/chargpt/chargpt.py",
            "--data.block_size=32 --model.model_type=gpt-nano --trainer.max_iters=12 --trainer.num_workers=0 --trainer.device=cpu",
            data=made((".", data.characters)), noise=(MINGPT,)),
    Program("mnist", "pytorch/examples", "mnist/main.py", SMALL + " --no-accel --save-model", data=DIGITS, inside="mnist", of_part=PART),
    Program("mnist_rnn", "pytorch/examples", "mnist_rnn/main.py", SMALL + " --save-model", data=DIGITS, inside="mnist_rnn", of_part=PART),
    Program("mnist_forward_forward", "pytorch/examples", "mnist_forward_forward/main.py", "--no_accel --epochs 12 --train_size 640 --test_size 128",
            data=DIGITS, seeded=False, refused={mode: "cannot be split" for mode in SPLIT}),
    Program("mnist_hogwild", "pytorch/examples", "mnist_hogwild/main.py", SMALL, data=DIGITS, inside="mnist_hogwild", modes=SPLIT,
            refused={mode: "starts processes that train" for mode in SPLIT}),
    Program("vae", "pytorch/examples", "vae/main.py", SMALL + " --no-accel", data=DIGITS, inside="vae", files=("vae/results",),
            refused={mode: "CASTOR_LOSS=sum" for mode in SPLIT}),
    Program("vae, CASTOR_LOSS=sum", "pytorch/examples", "vae/main.py", SMALL + " --no-accel", data=DIGITS, inside="vae", files=("vae/results",),
            settings=("CASTOR_LOSS=sum",), of_part=PART, ignored=("sample_1.png", "sample_2.png")),  # a pixel in 58564 was rounded the other way
    Program("word_language_model, LSTM", "pytorch/examples", "word_language_model/main.py", WORDS, data=made(("data", data.wikitext)),
            noise=LASTED),
    Program("word_language_model, Transformer", "pytorch/examples", "word_language_model/main.py", WORDS + " --model Transformer",
            data=made(("data", data.wikitext)), noise=LASTED),
    Program("word_language_model, by hand", "pytorch/examples", "word_language_model/main.py", WORDS.replace("--use-optimizer --lr 1e-3", "--lr 1"),
            data=made(("data", data.wikitext)), noise=LASTED, modes=SPLIT, aside=True),
    Program("dcgan", "pytorch/examples", "dcgan/main.py",
            "--dataset folder --dataroot data/train --manualSeed 3 --workers 0 --batchSize 16 --niter 2 --ngf 8 --ndf 8", data=made(("data", data.images)),
            double=True, of_part=r"D\(\S+: [\d. /]+", ignored=("real_samples.png",)),  # a picture of the rank's part
    Program("regression", "pytorch/examples", "regression/main.py", seeded=False, modes=SPLIT, aside=True),
]
