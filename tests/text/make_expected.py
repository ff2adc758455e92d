"""Makes tests/data/tokenizers: small tokenizers of every kind, texts, and the ids that the `tokenizers` library gives.

    python3 tests/text/make_expected.py        (needs: pip install tokenizers transformers; made with 0.22.2 and 0.23.3, 5.24.0)

cases.bin, little-endian: for each case u8 special, u32 bytes, the text, u32 count, that many u32 ids. A text may be
invalid UTF-8: then the ids are those of Python's errors="replace".
"""

import json
import os
import random
import struct

from transformers import AutoTokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = os.path.join(os.path.dirname(__file__), "..", "data", "tokenizers")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PROSE = """The drive beside the desk hummed as it had hummed all night, and the log of the run grew by a line a minute.
She had set the budget low, lower than anyone on the team would have dared, and it held. "It doesn't need more,"
she'd said; they'll see that it's true when the morning comes and the loss has fallen below three. Every step wrote
what it had to write and nothing else. At 12:34 on the 5th of May the power failed; at 12:36 the machine came back,
read its record, and went on from step 4096 as though nothing had happened.

    for step in range(1, 101):
        loss = model.step(batch)   # the usual thing
        if step % 10 == 0: print(step, loss)

What the weights were before, they were after: bit for bit. The naïve façade of the old café, the señor's piñata,
Ελληνικά γράμματα, русский текст, 日本語の文章と漢字, and a rocket 🚀 were all in the corpus. We're here, you've
seen it, I'm sure they'd agree; that wasn't the point. The water flowed over the stones and under the bridge, over the
meadow and through the town, and the people there thought that the thing was theirs, though it was not."""
ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def texts():
    rnd = random.Random(20240520)
    fixed = ["", "a", " ", "   ", "\n", "Hello world", "  spaces  before and after  ", "don't I'LL we’ve 'tis they'Ve",
             "a\r\nb\r\n\r\n  c\t\td \r\n", "12345678 3.14159 ٣٤٥ Ⅷ ½ 1 22 333 4444", "日本語テキスト、漢字。한국어 ไทย",
             "🙂👍🏽👨‍👩‍👧‍👦🚀", "e\u0301 a\u0308\u0323 \u1100\u1161\u11a8 \uac00\u11a8 \u212b \ufb01 \u0301x",
             "<|endoftext|>x<s>y</s> <unk> <mask>  <tool> a <r>   b word words <both>  c\n<both>",
             "\u00a0x\u3000y\u180ez\u2003w\u200b\u0085q", "y" * 200, " " * 100, "\n" * 40, "'ſ 'S \u212a's",
             "▁ ▁▁a▁b", "a\x00b", "the thing that they thought was there" * 3, "    if step % 10 == 0:\n\n\n        x",
             "word", "a word.", "<mask>   <mask>", "  <mask>  <r>  <r>", "<|endoftext|><|endoftext|>", "<tool", PROSE]
    yield from (t.encode() for t in fixed)
    yield from [b"\xff", b"a\xe2\x82", b"\xe2\x82a\xf0\x9f\x98", b"\xed\xa0\x80x\xc0\xaf\xf5\x80", b"\xf0\x9f\x99\x82\x80"]
    pieces = ["the ", "The", " over", "ing", "'s", " ", "  ", "\n", "é", "e\u0301", "日", "🚀", "7", "1.", ",", "\t", "<s>",
              "<|endoftext|>", "<mask>", "word", "д", "\u3000", "\u0301", "-", "_", "\r\n", "A", "zz"]
    for _ in range(40):
        yield "".join(rnd.choice(pieces) for _ in range(rnd.randrange(1, 40))).encode()
    scripts = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x500), (0x900, 0xA00), (0x1100, 0x1200),
               (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0x1F600, 0x1F650)]
    for _ in range(20):
        yield "".join(chr(rnd.randrange(*rnd.choice(scripts))) for _ in range(rnd.randrange(1, 40))).encode()


def write(name, tokenizer, end_of_text, more=()):
    folder = os.path.join(ROOT, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        f.write(tokenizer if isinstance(tokenizer, str) else tokenizer.to_str())
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"eos_token": end_of_text}, f)
    expect(folder, Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), more)


def expect(folder, tokenizer, more=()):
    with open(os.path.join(folder, "cases.bin"), "wb") as f:
        for raw in [*texts(), *(t.encode() for t in more)]:
            for special in (0, 1):
                tokenizer.encode_special_tokens = not special
                ids = tokenizer.encode(raw.decode("utf-8", errors="replace"), add_special_tokens=False).ids
                if special and ids == last:
                    continue
                last = ids
                f.write(struct.pack("<BI", special, len(raw)) + raw + struct.pack(f"<I{len(ids)}I", len(ids), *ids))


def beside(name, tokenizer, files):
    """Tokens that stand only in the files beside tokenizer.json (or vocab.json and merges.txt), as AutoTokenizer takes them."""
    folder = os.path.join(ROOT, name)
    os.makedirs(folder, exist_ok=True)
    model = json.loads(tokenizer.to_str())["model"]
    if name.endswith("pair"):
        files = {**files, "vocab.json": model["vocab"]}
        with open(os.path.join(folder, "merges.txt"), "w") as f:
            f.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"]))
    else:
        files = {**files, "tokenizer.json": json.loads(tokenizer.to_str())}
    for file, content in files.items():
        with open(os.path.join(folder, file), "w") as f:
            json.dump(content, f)
    t = AutoTokenizer.from_pretrained(folder)
    with open(os.path.join(folder, "end_of_text.bin"), "wb") as f:
        f.write(struct.pack("<II", t.eos_token_id, len(t)))
    expect(folder, t.backend_tokenizer, ["x<|im_end|>y [TOOL] z<|image|><|pad|>", "a <r>  b  <mask> c<s></s>[one][two]", "wordy word"])


def changed(tokenizer, **model):
    document = json.loads(tokenizer.to_str())
    document["model"].update(model)
    return json.dumps(document, ensure_ascii=False)


def byte_level(pre_tokenizer, normalizer=None, end_of_text="<|endoftext|>", added=()):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(PROSE.split("\n"), trainers.BpeTrainer(
        vocab_size=420, special_tokens=[end_of_text], initial_alphabet=ALPHABET, show_progress=False))
    t.add_tokens(list(added))
    return t


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece(rare):
    """rare: of the characters that stand once in PROSE, those that get a token (the trainer takes any of equals)."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.train_from_iterator(PROSE.split("\n"), trainers.BpeTrainer(
        vocab_size=460, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)],
        initial_alphabet=list(rare), limit_alphabet=49 + len(rare), show_progress=False))
    document = json.loads(t.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # the bytes are plain tokens
    document["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return document


def main():
    added = [AddedToken("<tool>", normalized=True), AddedToken("<mask>", lstrip=True, special=True),
             AddedToken("<r>", rstrip=True), AddedToken("word", single_word=True),
             AddedToken("<both>", lstrip=True, rstrip=True)]
    gpt2 = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    write("gpt2", gpt2, "<|endoftext|>")

    def token(content, special=False, **more):
        return {"content": content, "special": special, "normalized": not special, "lstrip": False, "rstrip": False,
                "single_word": False, **more}

    n = gpt2.get_vocab_size()
    listed = {"0": token("<|endoftext|>", True, rstrip=True), str(n): token("<|im_end|>", True), str(n + 1): token("[TOOL]"),
              str(n + 2): token("<r>", rstrip=True), str(n + 3): token("word", single_word=True)}
    beside("beside", gpt2, {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                  "pad_token": "<|pad|>", "image_token": "<|image|>", "add_bos_token": False,
                                  "added_tokens_decoder": listed, "additional_special_tokens": ["[one]", "<r>"]},
        # of no effect beside that list
        "special_tokens_map.json": {"eos_token": "<s>"}, "added_tokens.json": {"[two]": n}})
    beside("beside_old", gpt2, {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<s>", "unk_token": "<|endoftext|>",
                                  "mask_token": {"__type": "AddedToken", **token("<mask>", lstrip=True)}},
        "special_tokens_map.json": {"eos_token": token("<|im_end|>"), "bos_token": "<s>",
                                    "additional_special_tokens": ["[one]", "[two]"]},
        "added_tokens.json": {"[two]": n + 2, "<|im_end|>": n, "[TOOL]": n + 1}})
    beside("beside_pair", gpt2, {
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "add_prefix_space": True,
                                  "added_tokens_decoder": {k: v for k, v in listed.items() if k != "0"}}})
    write("gpt2_added", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), added=added), "<|endoftext|>")
    # tokens in the spaces that went with another token
    spaces = ["<r>" + " " * n + end for n in range(1, 8)
              for end in ("", "a", "<r>", "<l>", "<b>", "\n", "\n  x", " x")]
    spaces += ["a" + " " * n + token for n in range(6) for token in ("<l>", "<b>", "<m>", "<m>  a")]
    spaces += ["<b>" + " " * n + "<b>" + " " * n + "b" for n in range(8)]
    spaces += ["<r>  \n \n  x", "<r>\n\n x <l>", "<r>  <l>  <r>  <b>  x", "<r> <m>  <m> a", "<m>  x <m>  <r>",
               "<r>\u3000 \n "]
    for name, normalized in (("spaces", False), ("spaces_normalized", True)):
        tokens = [("<r>", False, True), ("<l>", True, False), ("<b>", True, True), ("\n", False, True),
                  (" <m>", True, False), (" x", False, False), ("  ", False, False), ("    ", False, False)]
        write(name, byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), added=[
            AddedToken(text, lstrip=left, rstrip=right, normalized=normalized) for text, left, right in tokens]),
            "<|endoftext|>", spaces)
    write("llama3", changed(byte_level(split(LLAMA3), end_of_text="<|end_of_text|>"), ignore_merges=True),
          "<|end_of_text|>")
    write("qwen2", byte_level(split(QWEN2), normalizers.NFC(), added=[AddedToken("<tool>", normalized=False)]),
          "<|endoftext|>")
    write("digits", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)])),
        "<|endoftext|>")
    write("removed", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "removed", invert=True),
        pre_tokenizers.Split("e", "merged_with_next"), pre_tokenizers.Split("a", "merged_with_previous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])), "<|endoftext|>")

    # what Oniguruma takes for words, and for words in brackets
    superscripts = ["x²y³", "10¹ ½a", "¼¾ q", "a ² b", "-¹-a¼-"]
    write("words", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\w-]+!|\w+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])), "<|endoftext|>",
        [*superscripts, *(t + "!" for t in superscripts)])

    # anchors, those of a line first: DeepSeek LLM's list, and others that look at both ends of the pieces they get
    ends = ["a  ", "a \n b \n", "\n", " \n \n", "x  \n\n  ", "12  \n34", "a\n\nb", "  a", "\n a\n  b\n", "ab\n", "b\nab\n\n",
            "a b\nb a\n", "  7  \n  7  "]
    for name, pieces in (
            ("line_ends", [("[\r\n]", "isolated"), (r"\s?\p{L}+", "isolated"), (r"\s?\p{P}+", "isolated"), (r"\s+$", "isolated"),
                           (r"\p{N}", "isolated")]),
            ("line_starts", [(r"\w+\n?\s?^|^\s*\S+|\S+\s*$", "isolated"), (r"^[^ ]| $", "merged_with_next")]),
            ("text_ends", [(r"\A\s?\w|\S\s*\z", "isolated"), (r"\s+\Z|e\Z", "merged_with_previous"), (r"\A.", "isolated")])):
        write(name, byte_level(pre_tokenizers.Sequence([
            *(pre_tokenizers.Split(Regex(pattern), behavior) for pattern, behavior in pieces),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])), "<|endoftext|>", ends)

    # normalizers, with added tokens that are looked for before and after them
    tokens = [AddedToken("<Tool>", normalized=True), AddedToken("<R\u00c9>", normalized=True, rstrip=True),
              AddedToken("[M\u00c4]", normalized=False, lstrip=True)]
    shapes = ["\u00c4\u0308\u0323 \u1e9b\u0323 \ufb01\uff21\u2460\u3392\u00a0x\u0130I\u03a3 \u01c5\u1fbc \u1c89\ua7cb\U00010d50",
              "\u1100\u1161\u11a8\uac00\u11a8\u3131\u314f\uff76\uff9e\u309b \u0e33\u0eb3 \u0958\u09dc",
              "a\u0898\u0316\u0301\u1df7\u0323b\U00011935\U00011930", "\u0345\u0301\u0316\u0334", "\u0301 a",
              "\U0001e030\U00010781 \u32ff", "<tool><TOOL> <R\u00c9>  <re\u0301>  x[M\u00c4] [MA\u0308] <r\u00e9>", "   ",
              " \n\t x \u3000 y  \u2003\n ", "  [M\u00c4]  a  [M\u00c4]   ", "''quoted'' ``so`` '''",
              "a\n\nb\r\n \n c  d   e"]
    N = normalizers
    for name, normalizer in (
            ("lowercase", N.Lowercase()), ("decomposed", N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase()])),
            ("compatible", N.Sequence([N.NFKC(), N.Strip(), N.Replace(Regex(r"\s{2,}"), "_"), N.NFKD()])),
            ("replaced", N.Sequence([N.Replace("''", '"'), N.Replace(Regex(r"\s*\n+\s*|^a"), "\n "),
                                     N.Replace(Regex("e$"), ""), N.NFC()])),
            ("stripped", N.Sequence([N.Strip(left=False), N.Prepend("_"), N.Lowercase()]))):
        t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer)
        t.add_tokens(tokens)
        write(name, t, "<|endoftext|>", shapes)

    # the same GPT-2 as its two old files
    folder = os.path.join(ROOT, "gpt2_files")
    os.makedirs(folder, exist_ok=True)
    model = json.loads(gpt2.to_str())["model"]
    with open(os.path.join(folder, "vocab.json"), "w") as f:
        json.dump(model["vocab"], f)
    with open(os.path.join(folder, "merges.txt"), "w") as f:
        f.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"]))
    expect(folder, gpt2)

    llama2 = sentencepiece("%ESïηκρу日本と")
    llama2["pre_tokenizer"] = None
    llama2["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    write("llama2", json.dumps(llama2, ensure_ascii=False), "</s>")
    llama2["model"]["merges"] = [" ".join(m) for m in llama2["model"]["merges"]]
    llama2["model"]["byte_fallback"] = False
    for token in llama2["added_tokens"]:
        token["normalized"] = True
    write("llama2_unknown", json.dumps(llama2, ensure_ascii=False), "</s>")
    for scheme, whole, rare in (("first", True, "#EMSçικνρ字文"), ("always", False, "5SΕγιτуの日漢章"),
                                ("never", False, "AEçéïκνе字文章")):
        mistral = sentencepiece(rare)
        mistral["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": not whole}
        write("metaspace_" + scheme, json.dumps(mistral, ensure_ascii=False), "</s>")

    # tokens that reach across words: the text falls apart in fewer places
    across = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    across.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    across.train_from_iterator([PROSE], trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"],
                                                           limit_alphabet=50, show_progress=False))
    write("across", across, "</s>")


main()
