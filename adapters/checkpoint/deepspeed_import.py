#!/usr/bin/env python3
"""deepspeed_import.py - converts a DeepSpeed checkpoint to a generation (FORMAT.md), which
loads at any stage and number of ranks.

    python3 deepspeed_import.py CHECKPOINT FOLDER --heads 12       writes FOLDER/step_00001000

CHECKPOINT is the folder of save_checkpoint (its file `latest` names the subfolder), or a folder
global_stepN: ZeRO stages 1, 2 and 3 with any number of ranks, stage 0, or the output of DeepSpeed's
ds_to_universal.py. Weights become the f32 master weights. Moments, the number of optimizer steps
and the loss scale are converted too. Tensor, pipeline and expert parallel checkpoints are refused.

    --heads N         GPT-2's number of heads, which no shape contains; or
    --config FILE     the config.json of transformers, which has them as n_head
    --map FILE        for a model other than GPT-2 with Hugging Face's names. JSON: {"our tensor":
                      ["their name in layer 0", "in layer 1", ...], "another": {"names": [...],
                      "transpose": true, "rows": 50304}}; rows: padded with zero rows to this number
    --groups FILE     stage 0 with several parameter groups, or with parameters that do not train:
                      [["first name of group 0", ...], ["first name of group 1", ...]] in the order
                      in which your code gave them to the optimizer; the checkpoint lacks it
    --optimizer NAME  adamw, adam, sgd, nesterov or lion; otherwise that of DeepSpeed's
                      configuration, or adamw if there is none but Adam's moments
    --step N          the generation's number; otherwise DeepSpeed's global_steps
    --force           ignore torch's checksums, and weights that are not the rounded master weights

GPT-2's weights may have the layout of Conv1D (in, out) or of nn.Linear (out, in); the shape of
c_attn decides. The vocabulary is padded to a multiple of 128 with zero rows. A tied lm_head is
omitted.

Needs torch and numpy, and XXH3 from libxxhash.so.0 or from Python's xxhash; not DeepSpeed. Files
are mapped, not read whole: the program needs memory for one tensor, and the system's cache.

TRUST. A DeepSpeed file is a pickle, which may call any function. This program calls only those that
make tensors, and everything else becomes an object that does nothing (class Unknown). So a file
from an unknown source can be wrong, but it cannot run code.
"""
import argparse
import ctypes
import json
import os
import pickle
import re
import shutil
import struct
import sys
import traceback
import types
import zipfile
from collections import OrderedDict

try:
    import numpy as np
    import torch
except ImportError as error:
    sys.exit(f"deepspeed_import: {error}: torch and numpy are needed")

PAGE, ALIGN, BLOCK, WINDOW = 4096, 64, 1 << 20, 8 << 20
STATES = {"adamw": ["exp_avg", "exp_avg_sq"], "adam": ["exp_avg", "exp_avg_sq"],
          "lion": ["exp_avg"], "sgd": ["momentum_buffer"], "nesterov": ["momentum_buffer"]}
MODEL_FILE = "mp_rank_00_model_states.pt"
MODEL_FILE_3 = "zero_pp_rank_%d_" + MODEL_FILE  # of every rank, at stage 3
RANK_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt$")


class Refused(Exception):
    """An error, as a sentence."""


def few(names, most=4):
    names = list(names)
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(map(str, names[:most])) or "none") + more


def up(number, to):
    return -(-number // to) * to


# ---- DeepSpeed's files ----

class Unknown:
    """Replaces an object of a class that is not called; keeps its arguments and attributes."""

    def __new__(cls, *args, **_):
        self = object.__new__(cls)
        self.args = args
        return self

    def __init__(self, *args, **_):
        pass

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __setitem__(self, key, value):
        pass

    def append(self, value):
        pass

    def extend(self, values):
        pass


KNOWN = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): lambda function, cls, args, state: function(*args),
}


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return KNOWN.get((module, name)) or type(name, (Unknown,), {"__module__": module})


PICKLE = types.SimpleNamespace(__name__="careful", Unpickler=Unpickler,
                               load=lambda file, **options: Unpickler(file, **options).load())


def load(path, crc):
    """A file of torch.save; its tensors stay on the disk until they are read."""
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped and crc:
            bad = zipfile.ZipFile(path).testzip()
            if bad:
                raise Refused(f"{path} is corrupt in {bad}")
        if zipped and torch._C.PyTorchFileReader(path).has_record("constants.pkl"):
            raise Refused(f"{path} is a TorchScript program and no checkpoint")  # it would run
        return torch.load(path, map_location="cpu", mmap=zipped, pickle_module=PICKLE,
                          weights_only=False)
    except FileNotFoundError:
        raise Refused(f"{path} is missing") from None
    except Refused:
        raise
    except Exception as error:  # whatever a broken file makes of zipfile, pickle and torch
        lines = str(error).splitlines() or [type(error).__name__]
        raise Refused(f"cannot read {path}: {lines[0]}") from None


def need(holder, key, path):
    """Returns holder[key], which every file of this kind has."""
    value = holder.get(key) if isinstance(holder, dict) else None
    if value is None:
        raise Refused(f"{path} has no {key}: it is none of DeepSpeed's, or of an old version")
    return value


class Parameter:
    """A parameter of the model. For "weight" and each optimizer state it has flat tensors, which
    together are the parameter."""

    def __init__(self, shape):
        self.shape = tuple(shape)
        self.numel = int(np.prod(self.shape, dtype=np.int64))
        self.pieces = {}

    def add(self, key, flat, first, count):
        self.pieces.setdefault(key, []).append(flat.detach().reshape(-1)[first:first + count])

    def read(self, key):
        """Returns a state in f32."""
        out, at = np.empty(self.numel, np.float32), 0
        for piece in self.pieces[key]:
            out[at:at + piece.numel()] = piece.float().numpy()
            at += piece.numel()
        return out.reshape(self.shape)


class Checkpoint:
    """The contents of DeepSpeed's files."""

    def __init__(self, folder, force):
        self.folder, self.force = folder, force
        self.parameters, self.steps = {}, set()
        self.stage, self.ranks, self.scaler, self.model = 0, 1, None, {}

    def load(self, *path):
        return load(os.path.join(self.folder, *path), not self.force)

    def declare(self, shapes):
        for name, shape in shapes.items():
            self.parameters[name] = Parameter(shape)

    def set_model(self, name):
        self.model_path = os.path.join(self.folder, name)
        self.model = self.load(name)
        need(self.model, "module", self.model_path)
        sizes = self.model.get("checkpoint_parallel_dimensions") or {}
        for what, ways in (("tensor", self.model.get("mp_world_size")),
                           ("tensor", sizes.get("tp_degree")),
                           ("pipeline", sizes.get("pp_degree"))):
            if (ways or 1) > 1:
                raise Refused(f"{self.folder} is {what} parallel ({ways} ways): not imported")
        if self.model.get("frozen_param_shapes"):
            raise Refused(f"{self.model_path} has parameters that do not train "
                          f"({few(self.model['frozen_param_shapes'])}): they have no moments")

    def config(self):
        found = self.model.get("ds_config")
        return found if isinstance(found, dict) else {}

    def add_step(self, *holders):
        """Returns the number of optimizer steps, from the first parameter that has one."""
        for holder in holders:
            if isinstance(holder, dict) and holder.get("step") is not None:
                self.steps.add(int(holder["step"]))
                return

    def taken(self):
        if len(self.steps) > 1:
            raise Refused(f"{self.folder} mixes states after {few(sorted(self.steps))} steps")
        return self.steps.pop() if self.steps else self.number("global_steps") - self.skipped()

    def read(self, name, key):
        """Returns a parameter's array in f32. Compares master weights with the model's weights, if
        the files have both (not at stage 3), so that files of two saves are an error."""
        values, model = self.parameters[name].read(key), self.model["module"].get(name)
        if key != "weight" or self.force or model is None or model.shape != values.shape:
            return values
        bits = torch.int32 if model.dtype == torch.float32 else torch.int16
        if not torch.equal(torch.from_numpy(values).to(model.dtype).view(bits),
                           model.contiguous().view(bits)):
            raise Refused(f"{name}: the masters are not those of the weights in {self.model_path}: "
                          "files of two saves, or a universal checkpoint of a run with "
                          "round_robin_gradients, which ds_to_universal.py mixes up? (--force "
                          "imports the masters all the same)")
        return values

    def number(self, key):
        return int(need(self.model, key, self.model_path))

    def skipped(self):
        return int(self.model.get("skipped_steps") or 0)


def states_of(group_state, weight):
    """Returns the optimizer's tensors of a flat weight, by name."""
    return {key: value for key, value in group_state.items()
            if torch.is_tensor(value) and value.dim() and value.numel() >= weight.numel()}


# ---- ZeRO stages 1, 2 and 3: a file of every rank ----

def rank_files(folder):
    """Returns the names of all files in the folder, in rank order."""
    found = {}
    for name in os.listdir(folder):
        match = RANK_FILE.match(name)
        if match and int(match.group(1)) in found:
            raise Refused(f"{folder} has two files of rank {match.group(1)}: {name} and "
                          f"{found[int(match.group(1))]}")
        if match:
            found[int(match.group(1))] = name
    missing = [rank for rank in range(len(found)) if rank not in found]
    if missing:
        raise Refused(f"{folder} has no optim_states.pt of rank {few(missing)}, but of rank "
                      f"{max(found)}")
    return [found[rank] for rank in range(len(found))]


def count_of(optimizer, path):
    counts = need(optimizer, "partition_count", path)
    counts = set(counts) if isinstance(counts, (list, tuple)) else {counts}
    if len(counts) > 1:
        raise Refused(f"{path}: groups in {few(sorted(counts))} parts (expert parallel), which is "
                      "not imported")
    return counts.pop()


def stage_of(optimizer):
    """BF16_Optimizer has no entry; it is 1."""
    stage = optimizer.get("zero_stage", 1)
    return int(stage.args[0] if isinstance(stage, Unknown) else stage)


def groups_of(c, optimizer, path):
    """Stages 1 and 2: returns this rank's partition of every group, by "weight" and state."""
    base = need(optimizer, "base_optimizer_state", path)
    flats = need(optimizer, "single_partition_of_fp32_groups", path)
    if len(flats) != len(c.model["param_shapes"]):
        raise Refused(f"{path} has {len(flats)} groups, {c.model_path} has "
                      f"{len(c.model['param_shapes'])}")
    out = []
    for g, weight in enumerate(flats):
        group = {} if isinstance(base, list) else base["param_groups"][g]
        state = base[g] if isinstance(base, list) else base["state"].get(group["params"][0], {})
        c.add_step(state, group, {"step": optimizer.get("base_optimizer_state_step")})
        out.append({"weight": weight, **states_of(state, weight)})
    return out


def cut_group(c, g, partitions, gaps):
    """Stages 1 and 2: a group's parameters lie one after another in the partitions of all ranks,
    the last of which has lost its padding. (The param_slice_mappings of the files say the same, but
    with round_robin_gradients they are in another order than the elements.)"""
    size, at, shapes = partitions[0]["weight"].numel(), 0, c.model["param_shapes"][g]
    if gaps and len(gaps[g]) != len(shapes):
        raise Refused(f"{c.folder}: group {g} has {len(gaps[g])} parameters, {c.model_path} says "
                      f"{len(shapes)}")
    for i, name in enumerate(shapes):
        parameter = c.parameters[name]
        for rank, flats in enumerate(partitions):
            first, last = max(at, rank * size), min(at + parameter.numel, (rank + 1) * size)
            for key, flat in flats.items() if first < last else ():
                parameter.add(key, flat, first - rank * size, last - first)
        at += parameter.numel + (gaps[g][i] if gaps else 0)
    total = sum(flats["weight"].numel() for flats in partitions)
    if total - at >= 2 * len(partitions):  # DeepSpeed pads to a multiple of that
        raise Refused(f"{c.folder}: group {g} has {total} elements, its parameters {at}")


def add_parts(c, optimizer, path, rank):
    """Stage 3: every parameter is cut into as many parts as there are ranks."""
    inner = need(optimizer, "optimizer_state_dict", path)
    if optimizer.get("ds_zero_partition_groups"):
        raise Refused(f"{path} is expert parallel, which is not imported")
    flats, shapes = need(optimizer, "fp32_flat_groups", path), c.model["param_shapes"]
    if len(flats) != len(shapes):
        raise Refused(f"{path} has {len(flats)} groups, {c.model_path} has {len(shapes)}")
    for g, weight in enumerate(flats):
        state, at = inner["state"].get(g, {}), 0
        c.add_step(state, inner["param_groups"][0])
        arrays = {"weight": weight, **states_of(state, weight)}
        for name in shapes[g]:
            parameter = c.parameters[name]
            part = -(-parameter.numel // c.ranks)
            for key, flat in arrays.items():
                parameter.add(key, flat, at, max(0, min(part, parameter.numel - rank * part)))
            at += part
        if at != weight.numel():
            raise Refused(f"{path}: group {g} has {weight.numel()} elements, its parameters {at}")


def same_moment(c, rank):
    """Stage 3 has a model file for every rank. Checks that all are of one save."""
    other = c.load(MODEL_FILE_3 % rank)
    for key in ("global_steps", "skipped_steps", "param_shapes"):
        if other.get(key) != c.model.get(key):
            raise Refused(f"{key} differs between {c.model_path} and {MODEL_FILE_3 % rank}: files "
                          "of two saves")


def read_zero(c, files):
    partitions, gaps = [], None
    for rank, name in enumerate(files):
        path, optimizer = os.path.join(c.folder, name), c.load(name).get("optimizer_state_dict")
        count = count_of(optimizer, path)
        if count != len(files):
            raise Refused(f"{path} is of {count} ranks, {c.folder} has files of {len(files)}: some "
                          "are missing, or left from another save")
        if rank == 0:
            c.stage, c.ranks, c.scaler = stage_of(optimizer), count, optimizer.get("loss_scaler")
            gaps = optimizer.get("param_alignment_paddings")
            c.set_model(MODEL_FILE_3 % 0 if c.stage == 3 else MODEL_FILE)
            for shapes in need(c.model, "param_shapes", c.model_path):
                c.declare(shapes)
        elif stage_of(optimizer) != c.stage:
            raise Refused(f"{path} is of ZeRO stage {stage_of(optimizer)}, {files[0]} of {c.stage}")
        elif c.stage == 3:
            same_moment(c, rank)
        if c.stage == 3:
            add_parts(c, optimizer, path, rank)
        else:
            partitions.append(groups_of(c, optimizer, path))
    for g in range(len(c.model["param_shapes"]) if partitions else 0):
        cut_group(c, g, [groups[g] for groups in partitions], gaps)


# ---- stage 0, universal ----

def trained_names(c, groups):
    """Returns names in the order of the optimizer's groups. A stage 0 checkpoint lacks them."""
    module, seen, names = c.model["module"], set(), []
    for name, tensor in module.items():
        place = (tensor.data_ptr(), tensor.shape)  # tied: the first name counts
        if name not in (c.model.get("buffer_names") or []) and place not in seen:
            names.append(name)
        seen.add(place)
    found = [names] if groups is None else groups
    for name in (name for group in found for name in group):
        if name not in module:
            raise Refused(f"--groups: {c.model_path} has no parameter {name}")
    return found


def named_groups(c, groups, saved, flat):
    """Returns the names of the optimizer's groups, after a check of their sizes."""
    names = trained_names(c, groups)
    sizes = [len(group["params"]) for group in saved]
    if len(names) != len(saved) or (not flat and sizes != [len(group) for group in names]):
        raise Refused(f"{c.model_path}: the optimizer has groups of {few(sizes)} parameters, the "
                      f"names are groups of {few(map(len, names))}: name them by --groups")
    return names


def read_replicated(c, groups):
    """Stage 0: one file; with 16 bit the masters lie in the optimizer, flat or not."""
    c.set_model(MODEL_FILE)
    if c.model.get("param_shapes"):
        raise Refused(f"{c.folder} has no ..._optim_states.pt, where the masters and moments are")
    optimizer = need(c.model, "optimizer", c.model_path)
    inner = optimizer.get("optimizer_state_dict", optimizer)
    flat, masters = optimizer.get("fp32_groups_flat"), optimizer.get("fp32_groups")
    saved = need(inner, "param_groups", c.model_path)
    if "cur_scale" in optimizer:
        scaler = {k: v for k, v in optimizer.items() if k.startswith(("cur_", "last_"))}
        c.scaler = types.SimpleNamespace(**scaler)
    for g, group in enumerate(named_groups(c, groups, saved, flat)):
        c.declare({name: c.model["module"][name].shape for name in group})
        at, index = 0, saved[g]["params"]
        for i, name in enumerate(group):
            weight = flat[g] if flat else masters[g][i] if masters else c.model["module"][name]
            state, count = inner["state"].get(index[0 if flat else i], {}), c.parameters[name].numel
            c.add_step(state, saved[g])
            for key, tensor in {"weight": weight, **states_of(state, weight)}.items():
                c.parameters[name].add(key, tensor, at, count if flat else tensor.numel())
            at += count if flat else 0
        if flat and at != flat[g].numel():
            raise Refused(f"{c.model_path}: group {g} has {flat[g].numel()} elements, its "
                          f"parameters {at}")


def read_universal(c):
    names = sorted(name for name in os.listdir(c.folder) if name.endswith("model_states.pt"))
    c.set_model(MODEL_FILE_3 % 0 if MODEL_FILE not in names else MODEL_FILE)
    for shapes in need(c.model, "param_shapes", c.model_path):
        c.declare(shapes)
    common = c.load("zero", "optimizer_state.pt")
    c.stage, c.ranks, c.scaler = stage_of(common), c.model.get("dp_world_size", 1), common.get(
        "loss_scaler")
    inner = common.get("optimizer_state_dict") or {}  # of rank 0 at stage 3
    for state in (inner.get("state") or {}).values():
        c.add_step(state)
    c.add_step({"step": common.get("base_optimizer_state_step")}, common["param_groups"][0])
    for name, parameter in c.parameters.items():
        folder = os.path.join(c.folder, "zero", name)
        for key in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
            found = c.load("zero", name, key)
            if key == "step.pt":
                c.add_step({"step": found})
                continue
            tensor = found.get("param") if isinstance(found, dict) else found
            parameter.add("weight" if key == "fp32.pt" else key[:-3], tensor, 0, tensor.numel())


# ---- any of them ----

def find_folder(path):
    """The folder with the files: `path`, or what its `latest` names."""
    if not os.path.isdir(path):
        raise Refused(f"{path} is no folder")
    for name in ("latest", "latest_universal"):
        latest = os.path.join(path, name)
        if os.path.isfile(latest):
            with open(latest, encoding="utf-8") as file:
                tag = file.read().strip()
            if not os.path.isdir(os.path.join(path, tag)):
                raise Refused(f"{latest} names {tag}, which is not there")
            return os.path.join(path, tag)
    return path


def check_sizes(c, optimizer):
    for name, parameter in c.parameters.items():
        more = set(parameter.pieces) - {"weight", *STATES[optimizer]}
        if more:
            raise Refused(f"{name} has {few(sorted(more))}, for which {optimizer} has no place: "
                          "another --optimizer?")
        for key in ["weight"] + STATES[optimizer]:
            pieces = parameter.pieces.get(key)
            if pieces is None:
                raise Refused(f"{c.folder} has no {key} of {name}")
            for piece in pieces:
                if piece.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                    raise Refused(f"{name}: its {key} is {piece.dtype}, expected f32, bf16 or f16")
            there = sum(piece.numel() for piece in pieces)
            if there != parameter.numel:
                raise Refused(f"{name}: {there} of {parameter.numel} elements of its {key} are "
                              "there")


def optimizer_name(c, asked):
    """The project's name of the optimizer, by DeepSpeed's rules on types."""
    section = c.config().get("optimizer") or {}
    said, options = str(section.get("type", "")).lower(), section.get("params") or {}
    known = {"": "adamw", "adamw": "adamw", "lion": "lion",
             "adam": "adamw" if options.get("adam_w_mode", True) else "adam",
             "sgd": "nesterov" if options.get("nesterov") else "sgd"}
    if asked is None and said not in known:
        raise Refused(f"the optimizer is {section['type']}, which is not known here: if it is one "
                      f"of {few(STATES, 9)}, choose one by --optimizer")
    return asked or known[said]


def read_checkpoint(path, options):
    c = Checkpoint(find_folder(path), options.force)
    names = os.listdir(c.folder)
    for what, pattern in (("expert", "expert"), ("pipeline", r"layer_\d"),
                          ("tensor", r"mp_rank_(?!00)\d\d")):
        found = [name for name in sorted(names) if re.search(pattern, name)]
        if found:
            raise Refused(f"{c.folder} is {what} parallel ({few(found, 1)}), which is not imported")
    files = rank_files(c.folder)
    if os.path.isfile(os.path.join(c.folder, "zero", "optimizer_state.pt")):
        read_universal(c)
    elif files:
        read_zero(c, files)
    elif MODEL_FILE in names:
        groups = read_json(options.groups, list) if options.groups else None
        read_replicated(c, groups)
    else:
        raise Refused(f"{c.folder} has neither ..._optim_states.pt nor {MODEL_FILE}, and no "
                      "`latest` names another folder")
    return c


# ---- names ----

GPT2 = OrderedDict([
    ("wte", "wte.weight"), ("wpe", "wpe.weight"),
    ("ln1w", "h.%d.ln_1.weight"), ("ln1b", "h.%d.ln_1.bias"),
    ("qkvw", "h.%d.attn.c_attn.weight"), ("qkvb", "h.%d.attn.c_attn.bias"),
    ("attprojw", "h.%d.attn.c_proj.weight"), ("attprojb", "h.%d.attn.c_proj.bias"),
    ("ln2w", "h.%d.ln_2.weight"), ("ln2b", "h.%d.ln_2.bias"),
    ("fcw", "h.%d.mlp.c_fc.weight"), ("fcb", "h.%d.mlp.c_fc.bias"),
    ("fcprojw", "h.%d.mlp.c_proj.weight"), ("fcprojb", "h.%d.mlp.c_proj.bias"),
    ("lnfw", "ln_f.weight"), ("lnfb", "ln_f.bias")])


def read_json(path, kind):
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from None
    if not isinstance(found, kind):
        raise Refused(f"{path}: expected {'a list' if kind is list else 'an object'} at the top")
    return found


def shape_of_gpt2(channels, vocabulary, positions):
    """(out, in), as gpt2.h stores them."""
    c = channels
    return {"wte": (vocabulary, c), "wpe": (positions, c), "qkvw": (3 * c, c), "qkvb": (3 * c,),
            "attprojw": (c, c), "fcw": (4 * c, c), "fcb": (4 * c,), "fcprojw": (c, 4 * c)}


def match_gpt2(parameters):
    """The layout for GPT-2 with transformers' names: tensor -> names, transpose, rows."""
    short = {re.sub(r"^((_orig_mod|module|transformer)\.)+", "", name): name for name in parameters}
    layers = 1 + max([int(n.split(".")[1]) for n in short if re.match(r"h\.\d+\.", n)], default=0)
    wanted = {ours: [theirs % l for l in range(layers)] if "%" in theirs else [theirs]
              for ours, theirs in GPT2.items()}
    missing = [f"{ours} ({n})" for ours, names in wanted.items() for n in names if n not in short]
    used = {n for names in wanted.values() for n in names}
    left = [full for n, full in short.items() if n not in used and n != "lm_head.weight"]
    if missing or left:
        raise Refused(f"this is no GPT-2 with Hugging Face's names: without a parameter are "
                      f"{few(missing)}; without a tensor are {few(left)}. --map gives others")
    layout = {ours: {"names": [short[n] for n in names]} for ours, names in wanted.items()}
    vocabulary, channels = (parameters[short["wte.weight"]].shape + (0,))[:2]
    conv1d = parameters[short["h.0.attn.c_attn.weight"]].shape == (channels, 3 * channels)
    shapes = shape_of_gpt2(channels, vocabulary, parameters[short["wpe.weight"]].shape[0])
    for ours, entry in layout.items():
        entry["transpose"] = conv1d and ours in ("qkvw", "attprojw", "fcw", "fcprojw")
        for name in entry["names"]:
            expected = shapes.get(ours, (channels,))[::-1 if entry["transpose"] else 1]
            if parameters[name].shape != expected:
                raise Refused(f"{name} is {parameters[name].shape}, expected {expected}")
    layout["wte"]["rows"] = up(vocabulary, 128)
    check_tied(parameters, short)
    return layout


def check_tied(parameters, short):
    head, wte = short.get("lm_head.weight"), short["wte.weight"]
    if head and not np.array_equal(parameters[head].read("weight"), parameters[wte].read("weight")):
        raise Refused(f"{head} differs from {wte}: only a tied classifier is known here")


def match_map(parameters, given, path):
    """Returns the layout of a --map file."""
    layout = {}
    for ours, entry in given.items():
        entry = {"names": entry} if isinstance(entry, list) else entry
        if not isinstance(entry, dict) or not entry.get("names") or set(entry) - {
                "names", "transpose", "rows"}:
            raise Refused(f"{path}: {ours}: expected a list of names, or an object with names, and "
                          "transpose and rows if wanted")
        layout[ours] = entry
    used = [name for entry in layout.values() for name in entry["names"]]
    twice = sorted({name for name in used if used.count(name) > 1})
    missing = [name for name in used if name not in parameters]
    left = [name for name in parameters if name not in used]
    if missing or left or twice:
        raise Refused(f"{path}: not in the checkpoint are {few(missing)}; not in the map are "
                      f"{few(left)}; twice in it are {few(twice)}")
    for ours, entry in layout.items():
        shapes = {parameters[name].shape for name in entry["names"]}
        flat = [shape for shape in shapes if len(shape) != 2]
        if len(shapes) > 1 or (flat and (entry.get("transpose") or entry.get("rows"))):
            raise Refused(f"{path}: {ours}: shapes {few(sorted(shapes))}: expected one for all "
                          "layers, and a matrix where rows or columns matter")
    return layout


def rows_added(parameter, entry):
    """Returns the number of zeros after a matrix."""
    if not entry.get("rows"):
        return 0
    rows, columns = parameter.shape[::-1] if entry.get("transpose") else parameter.shape
    if rows > entry["rows"]:
        raise Refused(f"{entry['names'][0]} has {rows} rows, more than {entry['rows']}")
    return (entry["rows"] - rows) * columns


# ---- a generation, as FORMAT.md has it ----

def find_xxh3():
    """A function of an array of bytes."""
    try:
        function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
        function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
        return lambda array: function(array.ctypes.data, array.size)
    except (OSError, AttributeError):
        pass
    try:
        import xxhash
        return lambda array: xxhash.xxh3_64_intdigest(array)
    except ImportError:
        raise Refused("neither libxxhash.so.0 (0.8 or newer) nor Python's xxhash is there: apt "
                      "install libxxhash0, or pip install xxhash") from None


class Shard:
    """Writes a shard file from begin to end, with a checksum of every block."""

    def __init__(self, path, xxh3):
        self.file, self.xxh3, self.at, self.table = open(path, "wb", buffering=0), xxh3, 0, []
        self.window = np.zeros(WINDOW, np.uint8)

    def put(self, data):
        data = np.frombuffer(data, np.uint8)
        while data.size:
            used = self.at % WINDOW
            n = min(WINDOW - used, data.size)
            self.window[used:used + n] = data[:n]
            self.at += n
            data = data[n:]
            if self.at % WINDOW == 0:
                self.flush(WINDOW)

    def pad(self, to):
        self.put(bytes(up(self.at, to) - self.at))

    def flush(self, n):
        for block in range(0, n, BLOCK):
            self.table.append(self.xxh3(self.window[block:min(block + BLOCK, n)]))
        self.write(self.window[:n])

    def write(self, data):
        data = memoryview(data)
        while data:
            data = data[self.file.write(data):]

    def close(self):
        """The table; its checksum."""
        self.flush(self.at % WINDOW)
        table = np.array(self.table, "<u8").tobytes()
        table += bytes(up(len(table), PAGE) - len(table))
        self.write(table)
        os.fsync(self.file.fileno())
        self.file.close()
        return self.xxh3(np.frombuffer(table, np.uint8)), self.at + len(table)


def plan(c, layout, states):
    """Returns the manifest's tensors, and the end of the elements."""
    at, tensors = PAGE, []
    for ours, entry in layout.items():
        first = c.parameters[entry["names"][0]]
        layers, numel = len(entry["names"]), first.numel + rows_added(first, entry)
        arrays = []
        for kind in ["weight", "moment_1", "moment_2"][:1 + len(states)]:
            arrays.append({"kind": kind, "type": "f32", "pieces": [[0, 0, layers * numel, at]]})
            at = up(at + 4 * layers * numel, ALIGN)
        tensors.append({"name": ours, "layers": layers, "numel": numel, "arrays": arrays})
    return tensors, up(at, PAGE)


def header(xxh3, save, step, image_bytes):
    used = b"ZEROSHRD" + struct.pack("<IIQqIIQ", 1, BLOCK, save, step, 0, 1, image_bytes)
    used += struct.pack("<Q", xxh3(np.frombuffer(used, np.uint8)))
    return used + bytes(PAGE - len(used))


def write_elements(shard, c, layout, states):
    for entry in layout.values():
        for key in ["weight"] + states:
            shard.pad(ALIGN)
            for name in entry["names"]:
                values = c.read(name, key)
                values = np.ascontiguousarray(values.T if entry.get("transpose") else values, "<f4")
                shard.put(values.reshape(-1).view(np.uint8))
                shard.put(np.zeros(4 * rows_added(c.parameters[name], entry), np.uint8))
    shard.pad(PAGE)


def counters(c):
    """Returns the dynamic loss scale, or the one that a run begins with."""
    found = {"steps": c.taken(), "skipped": c.skipped(), "iteration": 0, "last_overflow": -1,
             "scale": float(getattr(c.scaler, "cur_scale", 1)), "hysteresis": 2}
    if hasattr(c.scaler, "last_overflow_iter"):
        fp16 = c.config().get("fp16") or {}
        found["iteration"] = int(c.scaler.cur_iter)
        found["last_overflow"] = int(c.scaler.last_overflow_iter)
        found["hysteresis"] = int(getattr(c.scaler, "cur_hysteresis", fp16.get("hysteresis", 2)))
    return found


def values_of(c, layout, options):
    """Returns GPT-2's shape, for tools that have only the files."""
    if set(layout) != set(GPT2):
        return []
    heads = options.heads
    if options.config:
        found = read_json(options.config, dict)
        heads = found.get("n_head", found.get("num_attention_heads"))
    (positions, channels), vocabulary = (c.parameters[layout[ours]["names"][0]].shape
                                         for ours in ("wpe", "wte"))
    if not isinstance(heads, int) or heads < 1 or channels % heads:
        raise Refused(f"GPT-2 of {channels} channels with {heads or 'an unknown number of'} heads: "
                      "give them by --heads N, or --config with transformers' config.json")
    numbers = {"max_seq_len": positions, "vocab_size": vocabulary[0],
               "padded_vocab_size": layout["wte"].get("rows") or vocabulary[0],
               "layers": len(layout["ln1w"]["names"]), "heads": heads, "channels": channels}
    return [{"name": "gpt2." + key, "int": str(number)} for key, number in numbers.items()]


def config_of(c):
    """Returns the origin of the checkpoint, for readers."""
    origin = {"imported_from": os.path.abspath(c.folder),
            "deepspeed_version": str(c.model.get("ds_version")), "ds_config": c.config(),
            "global_samples": c.model.get("global_samples"),
            "lr_scheduler": c.model.get("lr_scheduler")}
    return json.dumps(origin, default=str).replace("\\u0000", "")


def manifest(c, step, optimizer, values):
    types_of = [t for t in ("bf16", "fp16") if (c.config().get(t) or {}).get("enabled") is True]
    micro = c.config().get("gradient_accumulation_steps")
    return {"format": "zero-checkpoint", "version": 1, "step": step, "save": os.urandom(8).hex(),
            "optimizer": {"name": optimizer, "arrays": len(STATES[optimizer])},
            "counters": counters(c), "values": values,
            "run": {"stage": c.stage, "ranks": int(c.ranks), "type": (types_of + ["f32"])[0],
                    "no_master": 0, "seed": "0",
                    "micro_steps": micro if isinstance(micro, int) and micro > 0 else 1},
            "config": config_of(c), "block_bytes": BLOCK}


def with_checksum(m, xxh3):
    text = json.dumps(m, indent=1)[:-2] + ",\n \"checksum\": \""
    data = text.encode()
    return data + b"%016x\"}\n" % xxh3(np.frombuffer(data, np.uint8))


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fill(folder, c, layout, m, xxh3):
    """Writes both files, and waits until they are on the disk."""
    states = STATES[m["optimizer"]["name"]]
    m["tensors"], image_bytes = plan(c, layout, states)
    there = shutil.disk_usage(folder).free
    if there < image_bytes + image_bytes // BLOCK * 8 + 4 * BLOCK:
        raise Refused(f"{image_bytes} bytes are needed in {folder}, {there} are there")
    shard = Shard(os.path.join(folder, "shard_00000.bin"), xxh3)
    shard.put(header(xxh3, int(m["save"], 16), m["step"], image_bytes))
    write_elements(shard, c, layout, states)
    table, size = shard.close()
    m["files"] = [{"name": "shard_00000.bin", "bytes": size, "image_bytes": image_bytes,
                   "table": f"{table:016x}"}]
    with open(os.path.join(folder, "manifest.json"), "wb") as file:
        file.write(with_checksum(m, xxh3))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def publish(folder, c, layout, m, xxh3):
    """Writes under another name until all bytes are on the disk; a failure leaves no file."""
    name = os.path.join(folder, f"step_{m['step']:08d}")
    found = os.listdir(folder) if os.path.isdir(folder) else []
    later = [n for n in found if re.fullmatch(r"step_\d{8,}", n) and int(n[5:]) >= m["step"]]
    if later:
        raise Refused(f"{folder} has {max(later)}: a run would resume from that; choose another "
                      "folder, or another --step")
    if not os.path.isdir(folder):
        os.mkdir(folder)
        sync_folder(os.path.dirname(os.path.abspath(folder)))
    temporary = f"{name}.tmp-{m['save']}"
    os.mkdir(temporary)
    try:
        fill(temporary, c, layout, m, xxh3)
        os.rename(temporary, name)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    return name


def run(options):
    xxh3 = find_xxh3()
    c = read_checkpoint(options.checkpoint, options)
    optimizer = optimizer_name(c, options.optimizer)
    check_sizes(c, optimizer)
    layout = match_map(c.parameters, read_json(options.map, dict), options.map) if options.map \
        else match_gpt2(c.parameters)
    step = c.number("global_steps") if options.step is None else options.step
    m = manifest(c, step, optimizer, values_of(c, layout, options))
    name = publish(options.folder, c, layout, m, xxh3)
    total = sum(t["layers"] * t["numel"] for t in m["tensors"])
    print(f"{name}: {len(m['tensors'])} tensors, {total} elements, {optimizer} after "
          f"{m['counters']['steps']} steps; from {c.folder}, ZeRO stage {c.stage}, {c.ranks} ranks")


def main():
    parser = argparse.ArgumentParser(description="Turns a DeepSpeed checkpoint into a generation.",
                                     epilog="More: the first lines of this file.")
    parser.add_argument("checkpoint", help="folder with `latest`, or global_stepN")
    parser.add_argument("folder", help="of generations; made if it is not there")
    parser.add_argument("--heads", type=int, help="of GPT-2")
    parser.add_argument("--config", help="transformers' config.json, for its n_head")
    parser.add_argument("--map", help="JSON: our tensors and their names")
    parser.add_argument("--groups", help="JSON: names in the optimizer's order, for stage 0")
    parser.add_argument("--optimizer", choices=sorted(STATES))
    parser.add_argument("--step", type=int, help="of the generation")
    parser.add_argument("--force", action="store_true", help="without checksums and comparison")
    options = parser.parse_args()
    if options.step is not None and options.step < 0:
        parser.error("--step: expected 0 or more")
    try:
        run(options)
    except (Refused, OSError) as error:
        sys.exit(f"deepspeed_import: {error}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        sys.exit(f"deepspeed_import: {options.checkpoint} is not as DeepSpeed writes it: "
                 f"{type(error).__name__} {error} ({os.path.basename(where[0])}:{where[1]})")


if __name__ == "__main__":
    main()
