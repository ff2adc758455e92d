"""Renders rows of messages by a chat template, in the sandbox and with the names that transformers gives it.

It reads a line {"templates": {...}, "variables": {...}, "special": [...], "seconds": N}, then a row on each line, with
"whole" where it is not asked what counts. It answers each with a line: {"texts": [{"text": ..., "counts": [[begin, end], ...]}]}, in bytes, or {"error": ...}.
"""

import json
import re
import resource
import signal
import sys
from datetime import datetime

try:
    import jinja2.debug
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    sys.exit(3)

BYTES = 2 << 30  # of memory
NOW = datetime.now()  # one for all rows, so that they are the same whenever they come
REASONING = "reasoning_content", "thinking", "reasoning"
MEDIA = {"image", "image_url", "video", "video_url", "audio", "audio_url", "input_audio"}
THOUGHT = re.compile(r"\s*(?:<think>\s*)?(?:</think>\s*)?\Z")
ADVICE = "put {% generation %} around what counts in the template"
GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}


class Refused(Exception):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %}: what counts. Text is yielded as it comes, so what was yielded says where a block begins."""

    tags = {"generation"}
    yielded, spans = 0, []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        text = caller()
        Generation.spans.append((Generation.yielded, Generation.yielded + len(text)))
        return text


class Dict:
    """Makes dicts, and lends no attributes of the type."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        values = dict(*args[1:], **kwargs)
        for name in values:
            check_name(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name, value):
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name that begins with '_', as {name!r} does")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime, dict=Dict(), namespace=Namespace)
    return made


class Chat:
    def __init__(self, templates, variables, special, seconds):
        self.seconds = seconds  # for a row
        made = environment()
        self.templates = {name: made.from_string(text) for name, text in templates.items()}
        self.marked = {name for name, text in templates.items() if re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", text)}
        self.variables = variables
        longest_first = sorted(filter(None, special), key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self.next_special = re.compile(rf"\s*(?:{self.special.pattern})")
        self.only_special = re.compile(rf"(?:\s|{self.special.pattern})*")
        self.ends_special = re.compile(rf"(?:{self.special.pattern})\s*\Z")
        self.longest = len(longest_first[0]) if longest_first else 0

    def texts(self, row):
        """Returns the row's sequences, each with the characters that count."""
        messages, tools, named = messages_of(row), tools_of(row), named_of(row)
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"

        def render(messages, prompt):
            given = {"tools": tools, "documents": row.get("documents"), "add_generation_prompt": prompt}
            blocks, Generation.spans, Generation.yielded = [], [], 0
            for block in self.templates[name].generate(messages=messages, **given, **{**self.variables, **named}):
                blocks.append(block)
                Generation.yielded += len(block)
            return "".join(blocks)

        full = render(messages, False)
        if row.get("whole"):
            return [(full, [])]
        if name in self.marked:
            spans = Generation.spans
            if any(before[1] > span[0] for before, span in zip(spans, spans[1:])):
                raise Refused("{% generation %} is within another one, or comes before what it renders is written")
            return [(full, spans)]
        found = []
        for i in reversed([i for i, message in enumerate(messages) if message.get("role") == "assistant"]):
            try:
                prompt = render(messages[:i], True)
                done = full if i == len(messages) - 1 else render(messages[: i + 1], False)
            except jinja2.exceptions.TemplateError as e:
                raise Refused(
                    f"the template does not render the messages before answer {i + 1} alone: {e}; {ADVICE}"
                ) from None
            # a prompt may end in a thought, open or empty, where the answer has another one or none
            begin = THOUGHT.search(prompt).start()
            if not done.startswith(prompt[:begin]):
                raise Refused(
                    f"what counts cannot be told: the template's prompt for an answer ends in {prompt[-32:]!r}, but "
                    f"message {i + 1} does not begin so; {ADVICE}"
                )
            for piece in re.findall(r"</?think>|\s", prompt[begin:]):
                if not done.startswith(piece, begin):
                    break
                begin += len(piece)
            content = messages[i].get("content")
            end = self.end(done, found[-1][0] if found else full, begin, content)
            if end is None:  # later turns change how the template writes this one: it is learnt as it was said
                found.append((done, []))
                end = len(done)
            elif not found:
                found.append((full, []))
            found[-1][1].insert(0, (begin, end))
        return found[::-1] or [(full, [])]

    def end(self, done, text, begin, content):
        """Returns where the answer from begin, at the end of done, ends in text; None: text has another one there."""
        if not text.startswith(done[:begin]):
            return None
        cut = len(done)
        if not text.startswith(done):
            cut = next((i for i in range(begin, min(cut, len(text))) if done[i] != text[i]), min(cut, len(text)))
            for start in range(max(cut - self.longest, begin), cut):  # a token is the same as a whole or not at all
                if any(m and m.end() > cut for m in (self.special.match(done, start), self.special.match(text, start))):
                    cut = start
                    break
        ended = self.ends_special.search(done, max(begin, cut - self.longest - 8), cut)
        if cut < len(done) and not (ended and self.only_special.fullmatch(done, cut)):
            return None
        marker = None if ended else self.next_special.match(text, cut)
        if marker:
            return marker.end()
        # where nothing of the template is behind the content, the next role's first token ends it
        bare = not ended and isinstance(content, str) and content.strip() and done.endswith(content.strip(), begin, cut)
        return min(cut + bool(bare), len(text))


def messages_of(row):
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Refused('"messages" is no list of messages')
    out = []
    for n, message in enumerate(messages, 1):
        message = {key: value for key, value in message.items() if value is not None}
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else []:
            if isinstance(part, dict) and part.get("type") in MEDIA:
                raise Refused(f"message {n} has {part['type']!r}, and only text is trained on")
        reasoning = next((message[key] for key in REASONING if key in message), None)
        out.append(message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning})
    return out


def tools_of(row):
    tools = row.get("tools")
    if isinstance(tools, str):
        tools = json.loads(tools)
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise Refused('"tools" is no list of JSON schemas')
    return tools


def named_of(row):
    named = row.get("chat_template_kwargs") or {}
    if not isinstance(named, dict) or GIVEN & set(named):
        raise Refused('"chat_template_kwargs" takes names of the template and their values')
    return named


def in_bytes(text, spans):
    """Returns the answer's form of a sequence; spans that touch become one."""
    out, at, place = [], 0, 0
    for span in spans:
        begin = place + len(text[at : span[0]].encode())
        at, place = span[1], begin + len(text[span[0] : span[1]].encode())
        if out and out[-1][1] == begin:
            out[-1][1] = place
        elif begin < place:
            out.append([begin, place])
    return {"text": text, "counts": out}


def answer(line, chat):
    try:
        row = json.loads(line)
        if chat is None:
            chat = Chat(**row)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # what a template does from here on opens nothing
            return chat, {"texts": []}
        return chat, {"texts": [in_bytes(*text) for text in chat.texts(row)]}
    except Refused as e:
        return chat, {"error": str(e)}
    except MemoryError:
        return chat, {"error": f"the template takes more than {BYTES >> 30} GiB of memory"}
    except Exception as e:
        return chat, {"error": f"the template fails: {type(e).__name__}: {e}"}


def main():
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    chat = None
    for line in sys.stdin.buffer:
        signal.alarm(chat.seconds if chat else 60)  # ends the process, whatever it does
        chat, said = answer(line, chat)
        print(json.dumps(said), flush=True)
        signal.alarm(0)


main()
