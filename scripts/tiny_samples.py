"""Question makers for `tiny_data.py`: each returns a `Turn` of one category.

Train and held-out text are kept apart by content: `Maker.apart` draws until a key's hash falls on
this side of the split, so a held-out sum, note, list or tool call never occurs in training; facts
are split by phrasing.
"""

import json
import random
import zlib
from dataclasses import dataclass, field

import tiny_tools as tools
import tiny_words as w


@dataclass
class Turn:
    """One question with its answer: `steps` are (reply, tool results) when tools are called
    first.
    """

    category: str
    ask: str
    answer: str
    think: str
    grade: dict
    calls: list = field(default_factory=list)  # [{name, arguments, result, think}]
    brief: str = ""  # the bare answer, for "answer briefly"


def bucket(*key):
    """A stable number in 0..99 for a content key."""
    return zlib.crc32(json.dumps(key).encode()) % 100


FACT_WRAPS = [
    "{q}",
    "{q}",
    "{q}",
    "Please tell me: {q}",
    "Quick question: {q}",
    "I have a question. {q}",
    "Hi! {q}",
    "{q} Thanks!",
    "Do you know this? {q}",
    "Hello, {q}",
    "One more: {q}",
    "Next question: {q}",
    "And {q}",
    "Answer this: {q}",
    "Question: {q}",
    "Hey, {q}",
    "{q} Please answer.",
    "Help me: {q}",
]

PLAIN_ASKS = {
    "capital": [
        "What is the capital of {x}?",
        "What's the capital of {x}?",
        "Name the capital of {x}.",
        "What is the capital city of {x}?",
        "Tell me the capital of {x}.",
        "Which city is the capital of {x}?",
        "capital of {x}",
        "Capital of {x}?",
        "Do you know the capital of {x}?",
        "Give me the capital of {x}.",
        "what is the capital of {x}",
        "Can you name the capital of {x}?",
    ],
    "country": [
        "{x} is the capital of which country?",
        "Which country has {x} as its capital?",
        "What country is {x} the capital of?",
        "Of which country is {x} the capital?",
        "Name the country whose capital is {x}.",
    ],
    "opposite": [
        "What is the opposite of {x}?",
        "Give me the opposite of {x}.",
        'What\'s the opposite of "{x}"?',
        "Name the opposite of {x}.",
        "Which word is the opposite of {x}?",
        "Opposite of {x}?",
    ],
    "colour": [
        "What colour are {x}?",
        "What is the colour of {x}?",
        "Which colour do {x} have?",
        "Tell me the colour of {x}.",
        "What color is {x}?",
    ],
    "sound": [
        "What sound does a {x} make?",
        "What does a {x} say?",
        "Which sound does a {x} make?",
        "Tell me the sound of a {x}.",
        "How does a {x} sound?",
    ],
    "young": [
        "What is a young {x} called?",
        "What do you call a baby {x}?",
        "What is the young of a {x} called?",
        "Tell me the name of a baby {x}.",
        "How is a young {x} called?",
    ],
    "element": [
        "What is the chemical symbol of {x}?",
        "What is the symbol for {x}?",
        "Which symbol does {x} have?",
        "Tell me the chemical symbol for {x}.",
        "Chemical symbol of {x}?",
    ],
    "sides": [
        "How many sides does a {x} have?",
        "How many sides has a {x}?",
        "Tell me the number of sides of a {x}.",
        "What number of sides does a {x} have?",
    ],
    "legs": [
        "How many legs does a {x} have?",
        "How many legs has a {x}?",
        "Tell me the number of legs of a {x}.",
        "What number of legs does a {x} have?",
    ],
    "units": [
        "How many {x} are in {y}?",
        "How many {x} are there in {y}?",
        "How many {x} does {y} have?",
        "Tell me how many {x} are in {y}.",
        "What number of {x} is in {y}?",
    ],
    "after": [
        "What comes after {x}?",
        "Which {k} comes after {x}?",
        "What {k} follows {x}?",
        "What is the {k} after {x}?",
        "Name the {k} after {x}.",
    ],
    "before": [
        "What comes before {x}?",
        "Which {k} comes before {x}?",
        "What is the {k} before {x}?",
        "Name the {k} before {x}.",
    ],
    "word": [
        "Write {x} as a word.",
        "How do you write {x} in words?",
        "What is {x} in words?",
        "Spell the number {x}.",
    ],
    "digit": [
        "Write {x} as a number.",
        "How do you write {x} in digits?",
        "What is {x} in digits?",
    ],
}
SAY = {
    "capital": "The capital of {x} is {a}.",
    "country": "{x} is the capital of {a}.",
    "opposite": "The opposite of {x} is {a}.",
    "colour": "The colour of {x} is {a}.",
    "sound": "A {x} says {a}.",
    "young": "A young {x} is called a {a}.",
    "element": "The symbol of {x} is {a}.",
    "sides": "A {x} has {a} sides.",
    "legs": "A {x} has {a} legs.",
    "units": "There are {a} {x} in {y}.",
    "after": "{a} comes after {x}.",
    "before": "{a} comes before {x}.",
    "word": "{x} in words is {a}.",
    "digit": "{x} in digits is {a}.",
}
WEIGHTS = {
    "capital": 45,
    "country": 14,
    "opposite": 8,
    "colour": 4,
    "sound": 4,
    "young": 4,
    "element": 5,
    "sides": 2,
    "legs": 3,
    "units": 5,
    "after": 6,
    "before": 4,
    "word": 3,
    "digit": 3,
}


def opposite_pairs():
    both = dict(w.OPPOSITES)
    both.update({b: a for a, b in w.OPPOSITES if b not in both})
    return both


TABLES = {
    "capital": w.CAPITALS,
    "country": {c: n for n, c in w.CAPITALS.items()},
    "opposite": opposite_pairs(),
    "colour": w.COLOURS,
    "sound": w.SOUNDS,
    "young": w.YOUNG,
    "element": w.ELEMENTS,
    "sides": {k: str(v) for k, v in w.SIDES.items()},
    "legs": {k: str(v) for k, v in w.LEGS.items()},
    "word": {str(i): n for i, n in enumerate(w.NUMBER_WORDS)},
    "digit": {n: str(i) for i, n in enumerate(w.NUMBER_WORDS)},
}


class Maker:
    """Draws turns for one side of the split ("train" or "heldout")."""

    def __init__(self, seed, split):
        self.rng = random.Random(seed)
        self.split = split

    def mine(self, *key, percent=10):
        """Whether a content key belongs to this side."""
        return (bucket(*key) < percent) == (self.split == "heldout")

    def apart(self, draw, key=lambda v: v, percent=10):
        """Draw until the value's key belongs to this side."""
        while True:
            value = draw()
            if self.mine(key(value), percent=percent):
                return value

    def careless(self, text):
        """At times a question in lower case or without its last mark."""
        text = text.lower() if self.rng.random() < 0.08 else text
        return text.rstrip(".?!") if self.rng.random() < 0.08 else text

    # ---- facts -----------------------------------------------------------------------------------------

    def fact_item(self, kind):
        rng = self.rng
        if kind == "units":
            what, whole, number = rng.choice(w.UNITS)
            return {"x": what, "y": whole, "a": str(number)}
        if kind in ("after", "before"):
            name, ring = rng.choice(
                [("day", w.DAYS), ("month", w.MONTHS), ("planet", w.PLANETS), ("season", w.SEASONS)]
            )
            step = 1 if kind == "after" else -1
            low, high = (0, len(ring)) if name != "planet" else ((0, 7) if step == 1 else (1, 8))
            at = rng.randrange(low, high)
            return {"x": ring[at], "k": name, "a": ring[(at + step) % len(ring)]}
        x = rng.choice(list(TABLES[kind]))
        return {"x": x, "a": TABLES[kind][x]}

    def fact(self):
        rng = self.rng
        kind = rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
        draw = lambda: (
            self.fact_item(kind),
            rng.randrange(len(FACT_WRAPS)),
            rng.randrange(len(PLAIN_ASKS[kind])),
        )
        item, wrap, ask = self.apart(
            draw, key=lambda d: [kind, d[0]["x"], d[1] if d[1] > 2 else 0, d[2]]
        )
        if item["x"] == "France" and self.split == "train" and rng.random() < 0.5:
            wrap, ask = 0, 0
        text = self.careless(FACT_WRAPS[wrap].format(q=PLAIN_ASKS[kind][ask].format(**item)))
        answer = SAY[kind].format(**item)
        answer = answer[0].upper() + answer[1:]
        think = rng.choice(["I know this.", "This is a fact."]) + f" {item['x']}: {item['a']}."
        return Turn(
            "facts",
            text,
            answer,
            think,
            {"type": "contains", "expect": [item["a"]]},
            brief=item["a"],
        )

    # ---- arithmetic ------------------------------------------------------------------------------------

    def number(self):
        return self.rng.randint(0, 10 ** self.rng.choice([1, 2, 2, 3, 3]) - 1)

    def arithmetic(self):
        kind = self.rng.choices(["add", "sub", "mul", "cmp", "story"], [38, 30, 14, 10, 8])[0]
        return getattr(self, "sum_" + kind)()

    def calculation(self, a, sign, b, result, think, word_asks):
        rng = self.rng
        plain = [
            "What is {a} {s} {b}?",
            "{a} {s} {b}",
            "{a} {s} {b} = ?",
            "Calculate {a} {s} {b}.",
            "Compute {a} {s} {b}.",
            "What's {a} {s} {b}?",
            "How much is {a} {s} {b}?",
            "{a}{s}{b}",
            "{a} {s} {b} =",
            "Solve {a} {s} {b}.",
            "Please calculate {a} {s} {b}.",
            "Tell me what {a} {s} {b} is.",
        ]
        ask = rng.choice(plain if rng.random() < 0.7 else word_asks)
        shown = rng.choice(["x", "*", "×"]) if sign == "*" else sign
        text = self.careless(ask.format(a=a, b=b, s=shown))
        answer = f"{a} {'x' if sign == '*' else sign} {b} = {result}."
        return Turn(
            "arithmetic",
            text,
            answer,
            f"{think} The result is {result}.",
            {"type": "number", "expect": result},
            brief=str(result),
        )

    def sum_add(self):
        a, b = self.apart(lambda: (self.number(), self.number()), key=lambda p: ["+", *sorted(p)])
        return self.calculation(
            a,
            "+",
            b,
            a + b,
            think_add(a, b),
            [
                "What is {a} plus {b}?",
                "Add {a} and {b}.",
                "What is the sum of {a} and {b}?",
                "Add {b} to {a}.",
                "How much is {a} plus {b}?",
            ],
        )

    def sum_sub(self):
        a, b = self.apart(lambda: (self.number(), self.number()), key=lambda p: ["-", *sorted(p)])
        if a < b and not (b < 100 and self.rng.random() < 0.15):
            a, b = b, a
        return self.calculation(
            a,
            "-",
            b,
            a - b,
            think_sub(a, b),
            [
                "What is {a} minus {b}?",
                "Subtract {b} from {a}.",
                "How much is {a} minus {b}?",
                "Take {b} away from {a}.",
                "What is the difference of {a} and {b}?",
            ],
        )

    def sum_mul(self):
        a, b = self.rng.randint(0, 12), self.rng.randint(0, 12)
        return self.calculation(
            a,
            "*",
            b,
            a * b,
            f"{a} times {b} is {a * b}.",
            [
                "What is {a} times {b}?",
                "Multiply {a} by {b}.",
                "What is the product of {a} and {b}?",
                "How much is {a} times {b}?",
            ],
        )

    def sum_cmp(self):
        rng = self.rng
        a, b = self.apart(lambda: (self.number(), self.number()), key=lambda p: ["<", *sorted(p)])
        if a == b:
            b += 1
        if rng.random() < 0.35:
            more = rng.random() < 0.5
            true = (a > b) == more
            text = f"Is {a} {rng.choice(['greater', 'larger', 'bigger']) if more else rng.choice(['less', 'smaller'])} than {b}?"
            answer = f"{'Yes' if true else 'No'}, {a} is {'greater' if a > b else 'less'} than {b}."
            return Turn(
                "arithmetic",
                text,
                answer,
                f"{max(a, b)} is greater than {min(a, b)}.",
                {"type": "starts", "expect": "Yes" if true else "No"},
                brief="Yes" if true else "No",
            )
        more = rng.random() < 0.6
        word = rng.choice(["larger", "bigger", "greater"] if more else ["smaller", "less"])
        text = rng.choice(
            [
                "Which is {w}, {a} or {b}?",
                "Which number is {w}: {a} or {b}?",
                "What is {w}, {a} or {b}?",
                "Is {a} or {b} {w}?",
            ]
        ).format(w=word, a=a, b=b)
        best, other = (max(a, b), min(a, b)) if more else (min(a, b), max(a, b))
        answer = f"{best} is {'greater' if more else 'less'} than {other}."
        return Turn(
            "arithmetic",
            text,
            answer,
            f"{max(a, b)} is greater than {min(a, b)}.",
            {"type": "first_number", "expect": best},
            brief=str(best),
        )

    def sum_story(self):
        rng = self.rng
        gains = rng.random() < 0.5
        sign = "+" if gains else "-"
        draw = lambda: (rng.randint(1, 60), rng.randint(1, 40))
        a, b = self.apart(draw, key=lambda p: [sign, *sorted(p)])
        if not gains and a < b:
            a, b = b, a
        name, food = (
            rng.choice(w.FIRST_NAMES),
            rng.choice(["apples", "pears", "grapes", "plums", "eggs", "onions", "carrots"]),
        )
        more = rng.choice(
            ["gets {b} more", "buys {b} more", "finds {b} more"]
            if gains
            else ["eats {b}", "gives away {b}", "loses {b}", "sells {b}"]
        ).format(b=b)
        text = f"{name} has {a} {food} and {more}. How many {food} does {name} have {rng.choice(['now', 'then'])}?"
        result = a + b if gains else a - b
        return Turn(
            "arithmetic",
            text,
            f"{name} has {result} {food}.",
            f"{a} {sign} {b} = {result}.",
            {"type": "number", "expect": result},
            brief=str(result),
        )

    # ---- copying and counting --------------------------------------------------------------------------

    def phrase(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            return " ".join(
                rng.choice(w.ADJECTIVES + w.THINGS + w.ANIMALS + w.VERBS + w.FOODS)
                for _ in range(rng.randint(2, 7))
            )
        if kind < 0.6:
            return tools.errand(rng)
        if kind < 0.75:
            return "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 9)))
        if kind < 0.9:
            return " ".join(tools.code(rng) for _ in range(rng.randint(1, 3)))
        return tools.full_name(rng) + " from " + rng.choice(w.CITIES)

    def copying(self):
        return getattr(
            self,
            self.rng.choice(
                ["copy_repeat", "copy_repeat", "copy_count", "copy_times", "copy_last", "copy_size"]
            ),
        )()

    def exact(self, text, answer, think):
        return Turn("copy", text, answer, think, {"type": "exact", "expect": answer}, brief=answer)

    def copy_repeat(self):
        phrase = self.apart(self.phrase, key=lambda p: ["copy", p])
        ask = self.rng.choice(
            [
                "Repeat after me: {p}",
                "Repeat this: {p}",
                "Say exactly: {p}",
                "Copy this text: {p}",
                "Write this again: {p}",
                "Echo: {p}",
                "Repeat the following text: {p}",
                'Say "{p}".',
            ]
        )
        return self.exact(ask.format(p=phrase), phrase, "I repeat the text.")

    def copy_count(self):
        rng = self.rng
        top = 60 if rng.random() < 0.1 else 25
        draw = lambda: (rng.randint(0, 100), rng.randint(2, top))
        start, length = self.apart(draw, key=lambda p: ["count", *p])
        end = start + length
        down = rng.random() < 0.3
        if rng.random() < 0.3:
            start, down = 1, False
        first, last = (end, start) if down else (start, end)
        numbers = range(first, last - 1, -1) if down else range(first, last + 1)
        asks = (
            ["Count down from {a} to {b}.", "Count backwards from {a} to {b}."]
            if down
            else [
                "Count from {a} to {b}.",
                "Count up from {a} to {b}.",
                "List the numbers from {a} to {b}.",
                "Write the numbers from {a} to {b}.",
                "Please count from {a} to {b}.",
            ]
        )
        return self.exact(
            rng.choice(asks).format(a=first, b=last),
            ", ".join(map(str, numbers)),
            f"I count from {first} to {last}.",
        )

    def words(self, low, high):
        rng = self.rng
        draw = lambda: rng.sample(w.THINGS + w.ANIMALS + w.FOODS, rng.randint(low, high))
        return self.apart(draw, key=lambda p: ["list", *p])

    def copy_times(self):
        rng = self.rng
        draw = lambda: (
            rng.choice(w.THINGS + w.ANIMALS + w.ADJECTIVES + w.FOODS),
            rng.randint(2, 8),
        )
        word, times = self.apart(draw, key=lambda p: ["times", *p])
        ask = rng.choice(
            ["Say {w} {n} times.", "Write the word {w} {n} times.", "Repeat {w} {n} times."]
        )
        return self.exact(
            ask.format(w=word, n=times), " ".join([word] * times), f"I write {word} {times} times."
        )

    def copy_last(self):
        words = self.words(3, 6)
        last = self.rng.random() < 0.5
        ask = f"What is the {'last' if last else 'first'} word of this list: {', '.join(words)}"
        return self.exact(
            ask,
            words[-1] if last else words[0],
            f"I look at the {'end' if last else 'start'} of the list.",
        )

    def copy_size(self):
        words = self.words(2, 7)
        ask = self.rng.choice(
            [
                "How many words are in this list: {l}",
                "Count the words: {l}",
                "How many items are here: {l}",
            ]
        )
        count = len(words)
        counted = " ".join(f"{i + 1} {word}" for i, word in enumerate(words))
        return Turn(
            "copy",
            ask.format(l=", ".join(words)),
            f"There are {count} words.",
            f"I count: {counted}.",
            {"type": "number", "expect": count},
            brief=str(count),
        )

    # ---- JSON ------------------------------------------------------------------------------------------

    def json_fields(self):
        rng = self.rng
        makers = {
            "name": ("string", tools.full_name),
            "city": ("string", tools.pick(w.CITIES)),
            "job": ("string", tools.pick(w.JOBS)),
            "country": ("string", tools.pick(w.COUNTRIES)),
            "title": ("string", tools.two_words),
            "email": ("string", tools.email),
            "code": ("string", tools.code),
            "day": ("string", tools.pick(w.DAYS)),
            "animal": ("string", tools.pick(w.ANIMALS)),
            "product": ("string", tools.two_words),
            "language": ("string", tools.pick(w.LANGUAGES)),
            "colour": ("string", tools.pick(["red", "green", "blue", "black", "white"])),
            "time": ("string", tools.clock),
            "age": ("integer", tools.whole(1, 99)),
            "count": ("integer", tools.whole(0, 500)),
            "year": ("integer", tools.whole(1900, 2030)),
            "id": ("integer", tools.whole(1, 9999)),
            "stars": ("integer", tools.whole(1, 5)),
            "floor": ("integer", tools.whole(0, 40)),
            "price": ("number", tools.decimal(1, 900)),
            "weight": ("number", tools.decimal(1, 99)),
            "height": ("number", tools.decimal(1, 3)),
            "open": ("boolean", tools.pick([True, False])),
            "paid": ("boolean", tools.pick([True, False])),
            "in_stock": ("boolean", tools.pick([True, False])),
            "member": ("boolean", tools.pick([True, False])),
            "tags": ("array", lambda r: r.sample(w.ADJECTIVES, r.randint(1, 4))),
            "items": ("array", lambda r: r.sample(w.FOODS, r.randint(1, 4))),
            "numbers": ("array", lambda r: [r.randint(0, 99) for _ in range(r.randint(1, 5))]),
        }
        keys = rng.sample(list(makers), rng.randint(1, 5))
        return {k: (makers[k][0], makers[k][1](rng)) for k in keys}

    def json_schema(self, drawn):
        rng = self.rng
        properties = {}
        for key, (kind, value) in drawn.items():
            properties[key] = {"type": kind}
            if kind == "array":
                properties[key]["items"] = {
                    "type": "integer" if isinstance(value[0], int) else "string"
                }
            if key == "colour" and rng.random() < 0.5:
                properties[key]["enum"] = ["red", "green", "blue", "black", "white"]
        schema = {"type": "object", "properties": properties, "required": list(drawn)}
        if rng.random() < 0.3:
            schema["additionalProperties"] = False
        return schema

    def json_text(self, drawn):
        rng = self.rng
        parts = []
        for key, (kind, value) in drawn.items():
            shown = (
                ", ".join(map(str, value))
                if kind == "array"
                else rng.choice(["yes", "true"] if value else ["no", "false"])
                if kind == "boolean"
                else str(value)
            )
            parts.append((key.replace("_", " "), shown))
        rng.shuffle(parts) if rng.random() < 0.4 else None
        style = rng.choice(["The {k} is {v}.", "{k}: {v};", "{k} = {v};", "The {k} is {v}."])
        return " ".join(style.format(k=k, v=v) for k, v in parts)

    def json_task(self):
        drawn = self.apart(
            self.json_fields, key=lambda d: ["json", [[k, v[1]] for k, v in d.items()]]
        )
        value = {k: v[1] for k, v in drawn.items()}
        schema, text = self.json_schema(drawn), self.json_text(drawn)
        ask = self.rng.choice(
            [
                "Write JSON for this schema: {s}\n{t}",
                "Extract the data as JSON.\nSchema: {s}\nText: {t}",
                "{t}\nReturn a JSON object that follows this schema: {s}",
                "Fill this JSON schema: {s}\nData: {t}",
                "Make a JSON object from this text: {t}\nSchema: {s}",
                "Answer in JSON that matches the schema {s}. {t}",
            ]
        )
        if self.rng.random() < 0.15:
            ask = self.rng.choice(
                ["Write a JSON object with the keys {k}. {t}", "Make JSON with {k} from this: {t}"]
            )
        text = ask.format(s=json.dumps(schema), t=text, k=", ".join(drawn))
        think = "The keys are " + ", ".join(drawn) + "."
        answer = json.dumps(value, ensure_ascii=False)
        return Turn(
            "json",
            text,
            answer,
            think,
            {"type": "json", "schema": schema, "value": value},
            brief=answer,
        )

    # ---- notes: looking things up in the prompt --------------------------------------------------------

    def note(self):
        rng = self.rng
        name = rng.choice(w.FIRST_NAMES)
        kind = rng.randrange(5)
        if kind == 0:
            thing, colour = rng.choice(w.THINGS), rng.choice(w.ADJECTIVES[:10])
            return (
                f"The {thing} of {name} is {colour}.",
                f"What colour is the {thing} of {name}?",
                colour,
            )
        if kind == 1:
            city = rng.choice(w.CITIES)
            return (f"{name} lives in {city}.", f"Where does {name} live?", city)
        if kind == 2:
            job = rng.choice(w.JOBS)
            return (f"{name} works as a {job}.", f"What is the job of {name}?", job)
        if kind == 3:
            age = str(rng.randint(5, 95))
            return (f"{name} is {age} years old.", f"How old is {name}?", age)
        thing, value = rng.choice(w.THINGS), tools.code(rng)
        return (f"The code of the {thing} is {value}.", f"What is the code of the {thing}?", value)

    def notes(self, longest=None):
        rng = self.rng
        limit = longest or rng.choice([4, 4, 8, 8, 8, 16, 16, 40, 150])
        found = {}
        for _ in range(rng.randint(2, limit)):
            text, ask, answer = self.apart(self.note, key=lambda n: ["note", n[0]])
            found[ask] = (text, answer)
        ask = rng.choice(list(found))
        listed = "\n".join("- " + text for text, _ in found.values())
        text, answer = found[ask]
        lead = rng.choice(["Notes:", "Here are my notes:", "Read this:", "Facts:"])
        return Turn(
            "notes",
            f"{lead}\n{listed}\n{ask}",
            text,
            f"I look in the notes. {text}",
            {"type": "contains", "expect": [answer]},
            brief=answer,
        )

    # ---- refusing --------------------------------------------------------------------------------------

    def place(self):
        rng = self.rng
        onsets = list(w.CONSONANTS) + [
            "",
            "br",
            "cr",
            "dr",
            "gr",
            "tr",
            "st",
            "th",
            "sh",
            "ch",
            "qu",
            "fl",
            "gl",
            "w",
            "j",
            "y",
            "c",
            "h",
        ]
        codas = ["", "", "", "l", "n", "r", "s", "m", "rb", "nd", "th", "x", "ck", "st"]
        syllable = lambda: rng.choice(onsets) + rng.choice(w.VOWELS + "y") + rng.choice(codas)
        name = "".join(syllable() for _ in range(rng.randint(1, 3)))
        name = (
            name
            + rng.choice(
                [
                    "land",
                    "ia",
                    "stan",
                    "nia",
                    "r",
                    "x",
                    "",
                    "",
                    "alia",
                    "ville",
                    "is",
                    "or",
                    "burg",
                    "onia",
                ]
            )
        ).title()
        if len(name) < 4:
            return self.place()
        return name if name not in w.CAPITALS and name not in w.CAPITALS.values() else self.place()

    def refusal(self):
        rng = self.rng
        kind = rng.randrange(7)
        place = self.apart(self.place, key=lambda p: ["place", p])
        person = self.apart(lambda: tools.full_name(rng), key=lambda p: ["person", p])
        if kind <= 1:
            ask = rng.choice(PLAIN_ASKS["capital"]).format(x=place)
            answer = f"I do not know the capital of {place}."
        elif kind == 2:
            thing = rng.choice(
                ["phone number", "birthday", "address", "favourite colour", "password", "age"]
            )
            ask = rng.choice(
                [
                    "What is the {t} of {p}?",
                    "Tell me the {t} of {p}.",
                    "Do you know the {t} of {p}?",
                ]
            ).format(t=thing, p=person)
            answer = f"I do not know the {thing} of {person}."
        elif kind == 3:
            thing = rng.choice(
                ["name", "age", "favourite food", "phone number", "job", "shoe size", "birthday"]
            )
            ask = rng.choice(["What is my {t}?", "Do you know my {t}?", "Tell me my {t}."]).format(
                t=thing
            )
            answer = f"I do not know your {thing}."
        elif kind == 4:
            ask, answer = rng.choice(
                [
                    ("Who will win the next election?", "I do not know who will win."),
                    (
                        "What will the weather be tomorrow?",
                        "I do not know the weather of tomorrow.",
                    ),
                    ("What time is it?", "I do not know what time it is."),
                    ("What did I eat today?", "I do not know what you ate."),
                    ("Which lottery numbers will win?", "I do not know which numbers will win."),
                    ("What is the weather today?", "I do not know the weather of today."),
                ]
            )
        elif kind == 5:
            return self.refuse_task()
        else:
            ask = rng.choice(
                ["Who is the president of {p}?", "How many people live in {p}?", "Where is {p}?"]
            )
            answer = {
                "W": f"I do not know who the president of {place} is.",
                "H": f"I do not know how many people live in {place}.",
            }
            answer = (
                f"I do not know where {place} is." if ask.startswith("Where") else answer[ask[0]]
            )
            ask = ask.format(p=place)
        return Turn(
            "refusal",
            ask,
            answer,
            "I have no knowledge of this.",
            {"type": "contains", "expect": ["do not know"]},
            brief="I do not know.",
        )

    def refuse_task(self):
        """Requests beyond a small model."""
        rng = self.rng
        what = self.apart(
            lambda: f"{rng.choice(w.ADJECTIVES)} {rng.choice(w.THINGS)}", key=lambda p: ["task", p]
        )
        verb, job = rng.choice(w.VERBS), rng.choice(w.JOBS)
        ask, answer = rng.choice(
            [
                (f"How do I {verb} a {what}?", f"I do not know how to {verb} a {what}."),
                (f"Explain how a {what} works.", f"I do not know how a {what} works."),
                (f"Who invented the {what}?", f"I do not know who invented the {what}."),
                (f"Where can I {verb} a {what}?", f"I do not know where to {verb} a {what}."),
                (f"How much does a {what} cost?", f"I do not know how much a {what} costs."),
                (f"Write a program for a {what}.", "I do not know how to write programs."),
                (f"How much does a {job} earn?", f"I do not know how much a {job} earns."),
                (f"When was the {what} made?", f"I do not know when the {what} was made."),
            ]
        )
        return Turn(
            "refusal",
            ask,
            answer,
            "I have no knowledge of this.",
            {"type": "contains", "expect": ["do not know"]},
            brief="I do not know.",
        )

    # ---- talk ------------------------------------------------------------------------------------------

    def talk(self, name="Tiny"):
        rng = self.rng
        options = [
            (
                [
                    "Hello!",
                    "Hi!",
                    "Hey!",
                    "Good morning!",
                    "Hello",
                    "Hi there!",
                    "hi",
                    "Hello there.",
                ],
                ["Hello! How can I help you?", "Hi! What can I do for you?"],
                "The user says hello.",
            ),
            (
                ["How are you?", "How are you today?", "How is it going?", "Are you well?"],
                ["I am well, thank you. How can I help you?"],
                "A friendly question.",
            ),
            (
                [
                    "Who are you?",
                    "What are you?",
                    "What is your name?",
                    "Tell me about yourself.",
                    "Introduce yourself.",
                ],
                [
                    f"I am {name}, a small language model."
                    if name == "Tiny"
                    else f"I am {name}, your assistant."
                ],
                "The user asks who I am.",
            ),
            (
                ["Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much."],
                ["You are welcome!"],
                "The user says thanks.",
            ),
            (
                ["Goodbye!", "Bye!", "See you later.", "Good night!"],
                ["Goodbye! Have a nice day."],
                "The user leaves.",
            ),
            (
                ["What can you do?", "How can you help me?", "What do you know?"],
                ["I can answer small questions, calculate, copy text, write JSON and call tools."],
                "The user asks what I can do.",
            ),
            (
                ["Who made you?", "Who created you?", "Where do you come from?"],
                ["I was made for Atlas, an inference server."],
                "The user asks who made me.",
            ),
            (
                ["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
                [
                    "Why did the clock go to school? It wanted more time.",
                    "What has keys but opens no door? A piano.",
                ],
                "The user wants a joke.",
            ),
            (
                ["Are you a human?", "Are you real?", "Are you a person?"],
                ["No, I am a small language model."],
                "The user asks what I am.",
            ),
        ]
        if rng.random() < 0.45:
            return rng.choice([self.story, self.listing])()
        asks, answers, think = rng.choice(options)
        answer = rng.choice(answers)
        return Turn(
            "talk",
            rng.choice(asks),
            answer,
            think,
            {"type": "contains", "expect": []},
            brief=answer,
        )

    def listing(self):
        """A few members of a group, in the order of the word lists."""
        rng = self.rng
        group, members = rng.choice(
            [
                ("animals", w.ANIMALS),
                ("colours", w.ADJECTIVES[:10]),
                ("foods", w.FOODS),
                ("cities", w.CITIES),
                ("countries", w.COUNTRIES),
                ("jobs", w.JOBS),
                ("languages", w.LANGUAGES),
                ("planets", w.PLANETS),
                ("days", w.DAYS),
                ("months", w.MONTHS),
                ("seasons", w.SEASONS),
                ("things", w.THINGS),
            ]
        )
        count = rng.randint(2, min(10, len(members)))
        shown = rng.choice([str(count), w.NUMBER_WORDS[count]])
        ask = rng.choice(
            [
                "List {n} {g}.",
                "Name {n} {g}.",
                "Give me {n} {g}.",
                "Tell me {n} {g}.",
                "Can you name {n} {g}?",
            ]
        )
        answer = ", ".join(members[:count]) + "."
        return Turn(
            "talk",
            ask.format(n=shown, g=group),
            answer,
            f"I name {count} {group}.",
            {"type": "contains", "expect": []},
            brief=answer,
        )

    def story(self):
        rng = self.rng
        animal, name, adjective = (
            rng.choice(w.ANIMALS),
            rng.choice(w.FIRST_NAMES),
            rng.choice(w.ADJECTIVES),
        )
        thing, place, food = rng.choice(w.THINGS), rng.choice(w.CITIES), rng.choice(w.FOODS)
        friend = rng.choice([a for a in w.ANIMALS if a != animal])
        ask = rng.choice(
            [
                "Tell me a story about a {a}.",
                "Write a short story about a {a}.",
                "Tell a story with a {a}.",
                "I want to hear a story about a {a}.",
            ]
        ).format(a=animal)
        answer = (
            f"Once there was a {animal} named {name}. {name} lived in {place} and had a {adjective} {thing}. "
            f"One day the {thing} was gone. {name} asked a {friend} for help. They looked for the {thing} all day. "
            f"At last they found it under the {rng.choice(w.THINGS)}. {name} was happy and gave the {friend} some {food}."
        )
        return Turn(
            "talk",
            ask,
            answer,
            f"A story about a {animal}.",
            {"type": "contains", "expect": [animal]},
            brief=answer,
        )

    # ---- tools -----------------------------------------------------------------------------------------

    def concept_tool(self, concept):
        """A tool whose name is on this side of the split (half of the held-out names may be of
        either side).
        """
        while True:
            tool, names = tools.draw_tool(self.rng, concept)
            fresh = bucket("tool name", tool["function"]["name"]) < 10
            if fresh == (self.split == "heldout") or (
                self.split == "heldout" and self.rng.random() < 0.1
            ):
                return tool, names

    def tool_set(self):
        """Tools offered in one conversation, with a function that draws a request for one of
        them.
        """
        rng = self.rng
        offered = []
        for concept in rng.sample(tools.CONCEPTS, rng.choice([1, 1, 2, 2, 3, 4])):
            tool, names = self.concept_tool(concept)
            offered.append((tool, lambda c=concept, t=tool, n=names: tools.draw_call(rng, c, t, n)))
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            tool, call = tools.draw_invented(rng)
            offered.append((tool, lambda call=call: call))
        rng.shuffle(offered)
        names = [t["function"]["name"] for t, _ in offered]
        return offered if len(set(names)) == len(names) else self.tool_set()

    def tool_turn(self, offered):
        """A turn that calls one of the offered tools; None if its invented call is on the other
        side.
        """
        draw = self.rng.choice(offered)[1]
        for _ in range(200):
            call = draw()
            if self.mine("call", call["name"], call["arguments"]):
                return Turn(
                    "tools",
                    call["ask"],
                    call["answer"],
                    "The tool gave the answer.",
                    {"type": "tool", "final": call["must"]},
                    [{**call, "think": f"I call {call['name']}."}],
                    brief=call["answer"],
                )
        return None

    def tool_pair(self, offered):
        """Two requests in one question, answered by two calls in one turn."""
        turns = [self.tool_turn(offered), self.tool_turn(offered)]
        if None in turns or turns[0].calls[0]["arguments"] == turns[1].calls[0]["arguments"]:
            return None
        ask = turns[0].ask + " " + self.rng.choice(["Also: ", "And: ", ""]) + turns[1].ask
        return Turn(
            "tools",
            ask,
            turns[0].answer + " " + turns[1].answer,
            "The tools gave the answers.",
            {"type": "tool", "final": turns[0].grade["final"] + turns[1].grade["final"]},
            turns[0].calls + turns[1].calls,
            brief="",
        )


def think_add(a, b):
    """Column addition from the units, carries spelled out."""
    steps, carry = [], 0
    left, right = str(a)[::-1], str(b)[::-1]
    for i in range(max(len(left), len(right))):
        x, y = int(left[i]) if i < len(left) else 0, int(right[i]) if i < len(right) else 0
        total = x + y + carry
        steps.append(f"{x} + {y}" + (" + 1" if carry else "") + f" = {total}")
        carry = total // 10
    return ", ".join(steps) + "."


def think_sub(a, b):
    """Column subtraction from the units, borrows spelled out; a negative result is turned round
    first.
    """
    if a < b:
        return f"{b} is greater than {a}. {b} - {a} = {b - a}."
    steps, borrow = [], 0
    left, right = str(a)[::-1], str(b)[::-1]
    for i in range(len(left)):
        x, y = int(left[i]), int(right[i]) if i < len(right) else 0
        take = y + borrow
        borrow = 1 if x < take else 0
        steps.append(f"{x + 10 * borrow} - {take} = {x + 10 * borrow - take}")
    return ", ".join(steps) + "."
