"""What each rung of the ladder does, as data for the page: for somebody who learns. What it brings is measured on the
machine at hand; nothing here promises it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lesson:
    """One rung, explained. The code is plain PyTorch, 2.11 to 2.14, without imports of torch, torch.nn as nn and
    torch.nn.functional as F."""

    what: str
    code: str
    helps: str
    hurts: str
    accuracy: str


SOURCES = (
    "The A100 walk is a published one of GPT-2 124M, in milliseconds a step: 1040 in fp32, 400 with TF32, 330 with "
    "BF16, 145 compiled, 104 with FlashAttention, 100 with a padded vocabulary. Figures for two CPU cores (Xeon with "
    "AMX, GPT-2 124M, 4 rows of 512 tokens, PyTorch 2.13) are from benchmarks/NOTES.md of Tenfold. Peak rates of cards "
    "are from their makers' data sheets."
)

LESSONS: dict[str, Lesson] = {
    "naive": Lesson(
        what="The step as a textbook writes it. Weights, activations and arithmetic are fp32. Attention computes a T x "
        "T matrix of scores for every head of every row, hides the future, and keeps the matrix in memory for the "
        "backward pass. Every operation is a kernel of its own that Python starts, reading its input from memory "
        "and writing its output back.",
        code="""\
scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
hidden = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
y = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v""",
        helps="As the reference: it is easy to read, easy to check, and runs everywhere. The A100 walk begins here, at "
        "1040 ms a step.",
        hurts="Everywhere else. The scores alone take 50 MB a layer in fp32 at 4 rows of 512 tokens and 12 heads, and "
        "four times that at 1,024 tokens.",
        accuracy="Nothing: this is what the others are compared with.",
    ),
    "batch": Lesson(
        what="A step works on a fixed number of rows; a device takes as many of them at a time as it is told, and adds "
        "up the gradients until the step is complete. More rows at a time make longer matrix products and fewer "
        "kernel starts for the same tokens, and weights are read less often. The tokens of a step stay, so the "
        "training does too.",
        code="""\
for x, y in zip(rows.split(64), targets.split(64)):  # 64: the most that fit, was 4
    loss = model(x, y)  # the sum over targets
    (loss / targets.numel()).backward()  # gradients add up""",
        helps="On a GPU with memory to spare: with few rows its kernels are too short to fill the chip, and starting "
        "them takes longer than running them.",
        hurts="Where products are long enough already, as on a CPU from a few rows on: more rows then only take "
        "memory, which grows in proportion, and leave the caches.",
        accuracy="Nothing but the order in which gradients are summed.",
    ),
    "tf32": Lesson(
        what="Tensor cores take fp32 operands, but look only at the first 10 of the mantissa's 23 bits; the exponent "
        "keeps its 8 bits, and the products are summed in fp32. What lies in memory stays fp32, so nothing else "
        "in the program changes.",
        code='torch.set_float32_matmul_precision("high")',
        helps="On NVIDIA's data-centre cards from Ampere (compute capability 8.0) on. An A100's peak grows eightfold, "
        "from 19.5 to 156 TFLOP/s; the A100 walk's step went from 1040 to 400 ms, since memory traffic stays.",
        hurts="Older cards do not have it. On GeForce cards its peak can be the same as fp32's: 35.6 TFLOP/s both on "
        "an RTX 3090. Where BF16 is native, that is faster still.",
        accuracy="An operand loses at most 2^-10 of its value, 0.1 %; sums keep fp32's precision.",
    ),
    "bf16": Lesson(
        what="Autocast runs matrix products and attention in bfloat16: fp32's 8 exponent bits with 7 of its 23 "
        "mantissa bits. Operands take half the memory traffic, and the units that multiply them are faster. "
        "Weights and the optimizer's moments stay fp32, and so do sums within a product and the loss.",
        code="""\
with torch.autocast("cuda", dtype=torch.bfloat16):  # or "cpu"
    loss = model(x, y)""",
        helps="On GPUs from Ampere on, and on CPUs with AMX or AVX-512 BF16. The A100 walk went from 400 (TF32) to 330 "
        "ms. The exponent's range is fp32's, so gradients neither overflow nor vanish and the loss needs no "
        "scale.",
        hurts="Where it is emulated: before compute capability 8.0 (a T4, a V100), although PyTorch's own check then "
        "answers that bf16 is supported. Weights are cast in every forward pass, which a small batch feels.",
        accuracy="An operand is rounded by up to 2^-8, about 0.4 %. The errors are as often up as down and largely "
        "cancel in sums; training GPT-2 in bf16 is common practice.",
    ),
    "fp16": Lesson(
        what="Autocast in IEEE half precision: 10 mantissa bits but only 5 of exponent, so that nothing below 6e-8 "
        "exists and nothing above 65,504. Gradients are often that small. So the loss is multiplied by a large "
        "scale before the backward pass and the gradients are divided by it afterwards; where they overflow, the "
        "update is left out and the scale halved (Micikevicius et al. 2018).",
        code="""\
scaler = torch.amp.GradScaler("cuda")  # once
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(x, y)
scaler.scale(loss).backward()
scaler.step(optimizer)  # scaler.unscale_(optimizer) first, if gradients are clipped
scaler.update()""",
        helps="On cards whose tensor cores know no bf16. It is the one lever that a T4 has: 65 TFLOP/s against 8.1 in "
        "fp32.",
        hurts="Where bf16 is native: the same speed on most cards, with a scale to look after. On CPUs without fast "
        "fp16 units it can be slower than fp32.",
        accuracy="Rounding is finer than bf16's (2^-11) as long as the scale keeps values in range. The first updates "
        "may be left out while the scale finds its level.",
    ),
    "compile-model": Lesson(
        what="torch.compile traces the model into one graph, forward and backward, and generates code for it: Triton "
        "on a GPU, C++ on a CPU. Neighbouring elementwise operations and reductions become one kernel, so that "
        "what lies between them never goes to memory, and Python no longer starts every operation. Matrix "
        "products mostly stay with the libraries.",
        code="model.compile()",
        helps="Where memory traffic and kernel starts bound the step. The A100 walk went from 330 to 145 ms, the "
        "longest stride in it.",
        hurts="In short runs: the first step waits for the compiler, 68 s on two CPU cores with an empty cache and 18 "
        "s with a warm one. Changing shapes compile again. It needs a C++ compiler, or Triton on a GPU.",
        accuracy="The same function. Fused kernels keep intermediate values in fp32 that would have been rounded, so "
        "losses differ in the last digits.",
    ),
    "compile-blocks": Lesson(
        what="The blocks of a transformer are the same code with other weights. Compiling a block instead of the model "
        "traces and generates that code once and uses it for all twelve.",
        code="""\
for block in model.h:
    block.compile()""",
        helps="The first step. On two CPU cores it took 26 s with an empty cache where the whole model took 68 s, both "
        "with SDPA; the deeper the model, the larger the difference.",
        hurts="What lies between blocks stays as it was: embedding, last normalisation, head and loss are not fused. "
        "Each block is entered from Python, which very short steps feel. On two CPU cores what compiled blocks "
        "brought was within the noise.",
        accuracy="As for the whole model: rounding in the last digits.",
    ),
    "sdpa": Lesson(
        what="One call in place of the five operations of attention. PyTorch picks a kernel for the device, the "
        "precision and the shape: FlashAttention, cuDNN, a memory-efficient one, or plain operations. The fused "
        "ones work on tiles of queries and keys with a running softmax, so the T x T matrix is never in memory; "
        "the backward pass computes its tiles again.",
        code="y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        helps="With long rows: memory grows with T instead of its square, and the masked half is skipped. The A100 "
        "walk went from 145 to 104 ms with FlashAttention.",
        hurts="On CPUs its backward pass is slow: for a layer it took 62 ms where the naive form took 54, on two "
        "cores; forward it took 10 instead of 45. is_causal aligns the mask top-left, which is wrong with a KV "
        "cache; other masks may leave the fast kernels.",
        accuracy="The same attention, summed in another order.",
    ),
    "flash": Lesson(
        what="The same call, but only PyTorch's own FlashAttention kernel (Dao 2023) is allowed, so that no other one "
        "is measured by accident; what it cannot do is an error. Scores stay in the chip's fast memory, tile by "
        "tile.",
        code="""\
from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
        helps="To know what runs. On Ampere and Ada it is usually what the plain call picks, and then this rung "
        "measures the same.",
        hurts="On NVIDIA cards it needs fp16 or bf16 and compute capability 8.0, and takes no mask but the causal one. "
        "It was not written for Hopper: an H100 reaches 35 % of its peak with it (Shah et al. 2024).",
        accuracy="The same attention, summed in another order.",
    ),
    "cudnn": Lesson(
        what="The same call with the fused attention of cuDNN, NVIDIA's library, whose kernels are tuned for each "
        "generation of cards. What cuDNN cannot do is an error here, not another kernel.",
        code="""\
from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
        helps="On Hopper and later, whose matrix units FlashAttention-2 does not fully use.",
        hurts="It needs fp16 or bf16 on an NVIDIA card of compute capability 8.0 or later, and prepares a plan for "
        "every new shape, which changing lengths feel.",
        accuracy="The same attention, summed in another order.",
    ),
    "fa3": Lesson(
        what="FlashAttention-3 is written for Hopper: loads, products and softmax of neighbouring tiles overlap, by "
        "hardware that earlier cards lack (Shah et al. 2024). It comes as a package of its own; PyTorch then "
        "calls it in place of its built-in kernel.",
        code="""\
from torch.nn.attention import activate_flash_attention_impl

activate_flash_attention_impl("FA3")  # once; needs the package flash_attn_3
y = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
        helps="On H100, H200 and their like: its authors measured 1.5 to 2 times the speed of FlashAttention-2 in "
        "fp16. At a few hundred tokens a row attention is a small part of the step.",
        hurts="On any other card it does not run. fp16 and bf16 only, for training.",
        accuracy="The same attention, summed in another order.",
    ),
    "flex": Lesson(
        what="The rule who may look at whom is written as a Python function; the compiler makes a fused kernel of it. "
        "A table of blocks, made once, says which tiles are fully hidden and can be skipped.",
        code="""\
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def causal(b, h, i, j):
    return i >= j

mask = create_block_mask(causal, None, None, T, T, device="cuda")  # once
y = torch.compile(flex_attention)(q, k, v, block_mask=mask)""",
        helps="For masks that the fast kernels do not know, such as several documents in a row or sliding windows.",
        hurts="For plain causal attention the hand-tuned kernels usually are as fast or faster. Not compiled it builds "
        "the whole matrix. On CPUs PyTorch has no backward pass for it.",
        accuracy="The same attention, summed in another order.",
    ),
    "rows": Lesson(
        what="Attention for CPUs: queries are taken in blocks of 128 rows, each against just the keys that it may see, "
        "by plain matrix products. At 512 tokens that is 62 % of the matrix. The backward pass is written by hand "
        "with the same products, so all of it runs at the speed of the matrix library.",
        code="""\
for i in range(0, T, 128):  # the forward pass
    j = min(i + 128, T)
    scores = q[..., i:j, :] @ k[..., :j, :].mT / math.sqrt(q.size(-1))
    scores = scores.masked_fill(hidden[i:j, :j], float("-inf"))
    y[..., i:j, :] = scores.softmax(-1) @ v[..., :j, :]""",
        helps="On CPUs from some 256 tokens a row: for a layer, forward and backward took 16 + 27 ms where SDPA took "
        "10 + 62, on two cores.",
        hurts="It keeps the probabilities for the backward pass, about T x T / 2 a head. On a GPU it would be many "
        "short kernels. Every product waits for its slowest thread, so a busy core beside it costs more than "
        "usual.",
        accuracy="The same attention, summed in another order.",
    ),
    "padded": Lesson(
        what="GPT-2's 50,257 tokens are an odd number. Kernels work in tiles, and rows of an odd length begin at "
        "addresses that wide loads do not like. With 50,304 = 393 x 128 rows in the embedding, everything is "
        "even, for 0.1 % more arithmetic.",
        code="""\
wte = nn.Embedding(50304, 768)  # was 50257
logits = F.linear(h, wte.weight)[..., :50257]  # the loss never sees the padding""",
        helps="On GPUs, whose libraries choose slower kernels for unaligned shapes. The A100 walk went from 104 to 100 "
        "ms.",
        hurts="Where the head is a small part of the step, or its library does not mind odd shapes, nothing changes. "
        "Checkpoints have 47 rows that other programs do not expect, to be cut off on the way out. Without "
        "masking, the model spends probability on tokens that do not exist.",
        accuracy="Nothing: the padding starts at zero, gets no gradient and is masked out of loss and sampling.",
    ),
    "fused": Lesson(
        what="AdamW reads a weight, its gradient and two moments and writes three of them back. Written as separate "
        "operations, each passes over all of memory again; fused, one kernel does everything in one pass.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)",
        helps="Where few tokens share an update: even one pass over GPT-2 124M's state is 3.5 GB of memory traffic, at "
        "any batch.",
        hurts="In large steps: with many rows to an update the optimizer is a small part of the time, however it is "
        "written.",
        accuracy="The same update, rounded in another order.",
    ),
    "chunked": Lesson(
        what="The widest tensor of the model is the last one: 2,048 tokens by 50,257 logits are 412 MB in fp32, and "
        "their gradient as much again. Head and loss are computed some tokens at a time instead, and each chunk's "
        "gradient right with it, so that only one chunk's logits exist at any moment.",
        code="""\
from torch.utils.checkpoint import checkpoint

def part(h, y):
    return F.cross_entropy(F.linear(h, wte.weight).float(), y, reduction="sum")

chunks = zip(states.split(1024), targets.split(1024))
# this form computes logits twice; a hand-written backward avoids that
loss = sum(checkpoint(part, h, y, use_reentrant=False) for h, y in chunks)""",
        helps="Wherever memory is short: what it frees holds more rows. On CPUs also in speed, since a slice of logits "
        "stays in the caches between product, softmax and gradient.",
        hurts="With a small vocabulary there is nothing to gain. On a GPU whose compiler fuses softmax and loss, "
        "shorter products can cost more than the memory traffic they save.",
        accuracy="The same sum in another order; over chunks it is kept in fp32.",
    ),
    "torch-loss": Lesson(
        what="PyTorch's own version of the same idea, one function for head and loss. Given options, it works through "
        "the tokens in chunks and makes the gradients in the forward pass.",
        code="""\
loss = F.linear_cross_entropy(
    h, wte.weight, targets, reduction="sum", options=nn.LinearCrossEntropyOptions()
)  # without options the logits are in memory after all""",
        helps="Where memory is short and no code of one's own is wanted. New in PyTorch 2.13.",
        hurts="It needs more tokens at a time than the model is wide to be worth it, runs outside of compiled code, "
        "and knows no masked padding: the weight has to be cut to the real vocabulary first. It can be slower "
        "than logits in memory.",
        accuracy="The same sum in another order; options.acc_policy decides in which precision chunks are added up.",
    ),
    "kept": Lesson(
        what="A step frees its large tensors. By default glibc gives such memory back to the system at once, and the "
        "next step's first touch of every page has the kernel map and clear it anew. Told to keep it, the process "
        "uses the same pages again.",
        code="""\
libc = ctypes.CDLL(None)
libc.mallopt(-4, 0)  # M_MMAP_MAX: large blocks come from the heap
libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the heap does not shrink""",
        helps="On CPUs under Linux: a step was between 1.05 and 1.3 times as fast on two cores, as the machine's state "
        "varied.",
        hurts="Other programs cannot use what the process keeps, and it counts at its peak. On a GPU PyTorch's own "
        "allocator keeps memory anyway.",
        accuracy="Nothing: arithmetic is untouched.",
    ),
    "recompute": Lesson(
        what="Activation checkpointing: a block keeps only its input, and the backward pass runs the block's forward "
        "again for what else it needs (Chen et al. 2016). Memory falls by most of the activations; the arithmetic "
        "of the blocks grows by about a third.",
        code="""\
from torch.utils.checkpoint import checkpoint

for block in model.h:
    h = checkpoint(block, h, use_reentrant=False)""",
        helps="Where memory decides: a model, a row length or a batch that would not fit otherwise.",
        hurts="Where there is enough of it: the step only gets slower, unless more rows at a time make up for that.",
        accuracy="Nothing: the same operations, run twice.",
    ),
    "refit": Lesson(
        what="Rungs above the first search have made room: no T x T matrices, no logits, perhaps no activations. So "
        "the largest number of rows that fits is searched again. The tokens of a step stay.",
        code="""\
for x, y in zip(rows.split(128), targets.split(128)):  # 128: what fits now
    loss = model(x, y)
    (loss / targets.numel()).backward()""",
        helps="On a GPU, if the room is large and the batch was too small to fill the chip.",
        hurts="If it was large enough: then only memory grows.",
        accuracy="Nothing but the order in which gradients are summed.",
    ),
    "fp8": Lesson(
        what="The linear layers of the blocks multiply in 8 bits: E4M3 (4 exponent bits, 3 of mantissa) for "
        "activations and weights, E5M2 for gradients. So few values need a scale: each tensor is multiplied so "
        "that its largest entry just fits, measured anew at every product (dynamic scaling). Sums are kept wide, "
        "and everything outside these products stays as it was.",
        code="""\
def to8(t):
    scale = 448 / t.abs().max().float()  # 448: E4M3's largest
    return (t.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn), 1 / scale

(x8, sx), (w8, sw) = to8(x), to8(weight)  # x: (tokens, in); weight: (out, in)
y = torch._scaled_mm(x8, w8.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)""",
        helps="In wide models on Ada, Hopper and later, whose peak is twice that of bf16.",
        hurts="At GPT-2 124M's width of 768: finding the largest entry and casting are passes over memory, and "
        "products this small may not repay them.",
        accuracy="The most of all rungs: an entry is rounded by up to 2^-4, about 6 %. Watch the loss over a longer "
        "run before trusting it.",
    ),
    "graphs": Lesson(
        what="Every kernel is started by the CPU, one after the other. A CUDA graph records all starts of a compiled "
        "graph once and replays them with one call, so that the CPU no longer has to keep up with the GPU.",
        code='model.compile(mode="reduce-overhead")',
        helps="With short kernels: small models, few rows, a slow CPU.",
        hurts="Where the GPU is busy anyway. Inputs are copied to fixed addresses, memory for the recording is kept, "
        "and what does not fit a recording (changing shapes, work on the CPU) runs without.",
        accuracy="Nothing: the same kernels run.",
    ),
    "autotune": Lesson(
        what="For every matrix product of the graph the compiler writes several kernels of its own, times them and the "
        "library's on the machine, and takes the fastest. On a GPU, CUDA graphs are switched on with it.",
        code='model.compile(mode="max-autotune")',
        helps="For unusual shapes, and where a product can be fused with what follows it.",
        hurts="The first step takes minutes. The libraries are hard to beat on common shapes. PyTorch tunes products "
        "only on NVIDIA GPUs with at least 68 multiprocessors; a T4 has 40.",
        accuracy="Other kernels sum in another order.",
    ),
    "ddp": Lesson(
        what="One process a GPU, each with the whole model and its share of the rows. Gradients are averaged over all "
        "of them in buckets while the backward pass still runs, and every process makes the same update. With "
        "accumulation, only the last part of a step exchanges gradients.",
        code="""\
from torch.nn.parallel import DistributedDataParallel

# under torchrun, after torch.distributed.init_process_group()
model = DistributedDataParallel(model, device_ids=[rank])""",
        helps="With several GPUs and many rows a step: time falls nearly by their number if the exchange hides behind "
        "the backward pass.",
        hurts="With few rows a step or slow links: GPT-2 124M's gradients are 498 MB in fp32, whatever the batch. With "
        "one GPU there is nothing to share.",
        accuracy="The same sum over all rows, in another order.",
    ),
}
