"""Tool concepts for `tiny_data.py`: schemas under many names, requests, results and final answers.

A concept is one thing a tool can do. `draw_tool` gives it a concrete function name, parameter names
and description; `draw_call` draws a request, the arguments it asks for, the tool's result and the
answer.
"""

import json
from dataclasses import dataclass, field

from tiny_words import (
    ADJECTIVES,
    CITIES,
    CONDITIONS,
    CONSONANTS,
    COUNTRIES,
    CURRENCIES,
    DAYS,
    FIRST_NAMES,
    FOODS,
    LANGUAGES,
    LAST_NAMES,
    ROOMS,
    SYMBOLS,
    THINGS,
    VERBS,
    VOWELS,
)


@dataclass
class Slot:
    """One parameter of a concept: canonical key, names it may take, JSON type, description, value
    source.
    """

    key: str
    names: str
    kind: str
    about: str
    draw: object
    enum: list = field(default_factory=list)
    tail: str = ""  # text that asks for this slot; a slot with a tail is optional


@dataclass
class Concept:
    """One thing a tool can do; `asks` and `answer` are templates over slot keys and result keys."""

    names: str
    about: list
    slots: list
    asks: list
    result: object
    answer: str


def pick(values):
    return lambda rng: rng.choice(values)


def whole(low, high):
    return lambda rng: rng.randint(low, high)


def decimal(low, high):
    return lambda rng: round(rng.uniform(low, high), rng.choice([1, 2])) + 0.0


def two_words(rng):
    return f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}"


def errand(rng):
    return f"{rng.choice(VERBS)} the {rng.choice(ADJECTIVES)} {rng.choice(THINGS)}"


def full_name(rng):
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.choice(['00', '15', '30', '45'])}"


def email(rng):
    return f"{rng.choice(FIRST_NAMES).lower()}@{rng.choice(['mail', 'post', 'office', 'home'])}.com"


def code(rng):
    return (
        rng.choice("ABCDEFGHKLMNPRST")
        + rng.choice("ABCDEFGHKLMNPRST")
        + str(rng.randint(100, 9999))
    )


def invented(rng, syllables=2):
    return "".join(
        rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(syllables)
    ) + rng.choice(["", "n", "x"])


def done(**extra):
    return lambda rng, values: {"status": "ok", **{k: f(rng) for k, f in extra.items()}}


def fields(**draws):
    return lambda rng, values: {k: f(rng) for k, f in draws.items()}


S = Slot
CONCEPTS = [
    Concept(
        "get_weather fetch_weather weather_lookup current_weather check_weather weather",
        [
            "Get the current weather for a city.",
            "Current weather of a place.",
            "Look up the weather.",
        ],
        [
            S("city", "city location place town", "string", "Name of the city", pick(CITIES)),
            S(
                "unit",
                "unit units scale",
                "string",
                "Temperature unit",
                pick(["celsius", "fahrenheit"]),
                ["celsius", "fahrenheit"],
                " Use {unit}.",
            ),
        ],
        [
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "What is the weather like in {city} today?",
            "Tell me the weather in {city}.",
            "Is it warm in {city} right now?",
            "I need the weather for {city}.",
        ],
        fields(temperature=whole(-10, 38), condition=pick(CONDITIONS)),
        "It is {condition} in {city} with a temperature of {temperature} degrees.",
    ),
    Concept(
        "get_time current_time time_in world_clock local_time",
        ["Get the local time of a city.", "Current time in a place."],
        [S("city", "city location place zone", "string", "Name of the city", pick(CITIES))],
        [
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "What is the local time in {city}?",
            "Do you know what time it is in {city}?",
        ],
        fields(time=clock),
        "It is {time} in {city}.",
    ),
    Concept(
        "set_timer start_timer create_timer timer",
        ["Start a timer.", "Set a timer for some minutes."],
        [
            S("minutes", "minutes duration length", "integer", "Length in minutes", whole(1, 90)),
            S(
                "label",
                "label name title",
                "string",
                "Name of the timer",
                pick(FOODS),
                [],
                " Call it {label}.",
            ),
        ],
        [
            "Set a timer for {minutes} minutes.",
            "Start a {minutes} minute timer.",
            "Wake me in {minutes} minutes.",
            "Please time {minutes} minutes.",
        ],
        done(),
        "The timer is set for {minutes} minutes.",
    ),
    Concept(
        "send_message message_person send_text text_contact",
        ["Send a message to a person.", "Send a text message."],
        [
            S("to", "to recipient person contact", "string", "Who gets it", pick(FIRST_NAMES)),
            S("text", "text message body content", "string", "What to say", errand),
        ],
        [
            "Send a message to {to}: {text}",
            "Text {to}: {text}",
            "Tell {to} this: {text}",
            "Message {to} and say: {text}",
        ],
        done(),
        "I sent your message to {to}.",
    ),
    Concept(
        "send_email email mail_person write_email",
        ["Send an email.", "Send an email to an address."],
        [
            S("to", "to address recipient email", "string", "Email address", email),
            S("subject", "subject title topic", "string", "Subject line", two_words),
        ],
        [
            "Send an email to {to} about the {subject}.",
            "Email {to} about the {subject}.",
            "Write to {to} about the {subject}.",
        ],
        done(),
        "The email about the {subject} was sent to {to}.",
    ),
    Concept(
        "convert_currency exchange_money currency_convert exchange_rate",
        ["Convert money between currencies.", "Change an amount to another currency."],
        [
            S(
                "amount",
                "amount value sum",
                "number",
                "Amount of money",
                lambda r: whole(1, 900)(r) if r.random() < 0.5 else decimal(1, 500)(r),
            ),
            S(
                "src",
                "from source from_currency base",
                "string",
                "Currency to change",
                pick(CURRENCIES),
            ),
            S("dst", "to target to_currency quote", "string", "Currency to get", pick(CURRENCIES)),
        ],
        [
            "Convert {amount} {src} to {dst}.",
            "How much is {amount} {src} in {dst}?",
            "Change {amount} {src} into {dst}.",
            "What are {amount} {src} worth in {dst}?",
        ],
        fields(result=decimal(1, 900)),
        "{amount} {src} is {result} {dst}.",
    ),
    Concept(
        "translate_text translate translator to_language",
        ["Translate a text.", "Translate text into another language."],
        [
            S("text", "text phrase content input", "string", "Text to translate", two_words),
            S(
                "lang",
                "language target target_language lang",
                "string",
                "Language to use",
                pick(LANGUAGES),
            ),
        ],
        [
            'Translate "{text}" into {lang}.',
            'How do you say "{text}" in {lang}?',
            'What is "{text}" in {lang}?',
            'Put "{text}" into {lang}, please.',
        ],
        fields(translation=lambda r: invented(r, 2) + " " + invented(r, 3)),
        'In {lang}, "{text}" is "{translation}".',
    ),
    Concept(
        "web_search search search_web find_pages lookup",
        ["Search the web.", "Find pages about a topic."],
        [
            S("query", "query q topic terms", "string", "What to look for", two_words),
            S(
                "limit",
                "limit count max_results n",
                "integer",
                "How many results",
                whole(1, 20),
                [],
                " Show {limit} results.",
            ),
        ],
        [
            "Search the web for {query}.",
            "Find pages about a {query}.",
            "Look up {query} on the web.",
            "Search for {query}.",
        ],
        fields(hits=whole(1, 99), top=two_words),
        "I found {hits} pages. The first one is about a {top}.",
    ),
    Concept(
        "get_stock_price stock_price stock_quote share_price",
        ["Get the price of a stock.", "Latest price of a share."],
        [S("symbol", "symbol ticker stock code", "string", "Stock symbol", pick(SYMBOLS))],
        [
            "What is the stock price of {symbol}?",
            "How much is one share of {symbol}?",
            "Give me the price of {symbol}.",
            "What does {symbol} cost right now?",
        ],
        fields(price=decimal(5, 900)),
        "One share of {symbol} costs {price} dollars.",
    ),
    Concept(
        "switch_light set_light light_control lights toggle_light",
        ["Turn a light on or off.", "Control the light of a room."],
        [
            S("room", "room area place location", "string", "Which room", pick(ROOMS)),
            S("on", "on state enabled power", "boolean", "true to turn it on", pick([True, False])),
        ],
        [
            "Turn {on} the light in the {room}.",
            "Switch {on} the {room} light.",
            "Please turn the light in the {room} {on}.",
            "Lights {on} in the {room}.",
        ],
        done(),
        "The light in the {room} is now {on}.",
    ),
    Concept(
        "set_temperature set_thermostat heat_room thermostat",
        ["Set the temperature of a room.", "Control the heating."],
        [
            S("room", "room area zone place", "string", "Which room", pick(ROOMS)),
            S(
                "degrees",
                "degrees temperature value target",
                "number",
                "Temperature to reach",
                lambda r: r.randint(15, 26) + r.choice([0, 0, 0.5]),
            ),
        ],
        [
            "Set the {room} to {degrees} degrees.",
            "Heat the {room} to {degrees} degrees.",
            "Make it {degrees} degrees in the {room}.",
        ],
        done(),
        "The {room} is set to {degrees} degrees.",
    ),
    Concept(
        "book_table reserve_table make_reservation table_booking",
        ["Book a table in a restaurant.", "Reserve a table."],
        [
            S(
                "place",
                "restaurant place venue name",
                "string",
                "Name of the restaurant",
                lambda r: "The " + two_words(r).title(),
            ),
            S(
                "people",
                "people guests party_size seats",
                "integer",
                "How many people",
                whole(1, 12),
            ),
            S("time", "time at hour when", "string", "When", clock),
        ],
        [
            "Book a table at {place} for {people} people at {time}.",
            "Reserve a table for {people} at {place} at {time}.",
            "I want a table for {people} people at {place} at {time}.",
        ],
        done(code=code),
        "Your table for {people} at {place} is booked at {time}. The code is {code}.",
    ),
    Concept(
        "add_event create_event calendar_add schedule_event schedule",
        ["Add an event to the calendar.", "Put something in the calendar."],
        [
            S("title", "title name event what", "string", "Name of the event", errand),
            S("day", "day date weekday when", "string", "Day of the week", pick(DAYS)),
            S(
                "hour",
                "hour at start time",
                "integer",
                "Hour of the day",
                whole(0, 23),
                [],
                " It starts at {hour}.",
            ),
        ],
        [
            'Add "{title}" to my calendar on {day}.',
            'Put "{title}" in the calendar for {day}.',
            'Schedule "{title}" for {day}.',
        ],
        done(),
        'I added "{title}" to your calendar on {day}.',
    ),
    Concept(
        "play_song play_music play music_player",
        ["Play a song.", "Play music."],
        [
            S(
                "title",
                "title song track name",
                "string",
                "Name of the song",
                lambda r: two_words(r).title(),
            ),
            S(
                "volume",
                "volume level loudness",
                "integer",
                "Volume from 0 to 100",
                whole(0, 100),
                [],
                " Set the volume to {volume}.",
            ),
            S(
                "repeat",
                "repeat loop again",
                "boolean",
                "Play again and again",
                lambda r: True,
                [],
                " Keep repeating it.",
            ),
        ],
        [
            "Play the song {title}.",
            "I want to hear {title}.",
            "Put on {title}, please.",
            "Start playing {title}.",
        ],
        done(),
        "Now playing {title}.",
    ),
    Concept(
        "add_item add_to_list shopping_add add_product",
        ["Add an item to the shopping list.", "Put something on the list."],
        [
            S("item", "item product thing name", "string", "What to add", pick(FOODS)),
            S("count", "quantity count amount number", "integer", "How many", whole(1, 40)),
        ],
        [
            "Add {count} {item} to my shopping list.",
            "Put {count} {item} on the list.",
            "I need to buy {count} {item}, add it.",
        ],
        done(),
        "I added {count} {item} to your list.",
    ),
    Concept(
        "find_flight search_flights flight_search get_flights",
        ["Find a flight between two cities.", "Search for flights."],
        [
            S("src", "from origin departure start", "string", "City to leave", pick(CITIES)),
            S("dst", "to destination arrival end", "string", "City to reach", pick(CITIES)),
            S(
                "day",
                "day date weekday when",
                "string",
                "Day of travel",
                pick(DAYS),
                [],
                " I leave on {day}.",
            ),
        ],
        [
            "Find a flight from {src} to {dst}.",
            "I want to fly from {src} to {dst}.",
            "Is there a flight from {src} to {dst}?",
        ],
        fields(flight=code, price=whole(40, 900)),
        "Flight {flight} from {src} to {dst} costs {price} dollars.",
    ),
    Concept(
        "get_distance distance measure_distance distance_between",
        ["Get the distance between two cities.", "How far two places are apart."],
        [
            S("src", "from origin start a", "string", "First city", pick(CITIES)),
            S("dst", "to destination end b", "string", "Second city", pick(CITIES)),
        ],
        [
            "How far is it from {src} to {dst}?",
            "What is the distance from {src} to {dst}?",
            "Tell me the distance between {src} and {dst}.",
        ],
        fields(km=whole(50, 9000)),
        "It is {km} kilometres from {src} to {dst}.",
    ),
    Concept(
        "add_numbers add sum_numbers plus",
        ["Add two numbers.", "Get the sum of two numbers."],
        [
            S(
                "a",
                "a x first left",
                "number",
                "First number",
                lambda r: r.choice([whole(1, 9999), decimal(1, 99)])(r),
            ),
            S(
                "b",
                "b y second right",
                "number",
                "Second number",
                lambda r: r.choice([whole(1, 9999), decimal(1, 99)])(r),
            ),
        ],
        [
            "Use the tool to add {a} and {b}.",
            "Add {a} and {b} with the tool.",
            "Calculate the sum of {a} and {b} with a tool.",
        ],
        lambda r, v: {"result": round(v["a"] + v["b"], 2)},
        "The sum of {a} and {b} is {result}.",
    ),
    Concept(
        "get_user find_user lookup_user user_info get_customer",
        ["Get the record of a user.", "Find a user by number."],
        [S("id", "id user_id number key", "integer", "Number of the user", whole(1, 9999))],
        [
            "Who is user {id}?",
            "Look up user {id}.",
            "Find the user with number {id}.",
            "Show me user number {id}.",
        ],
        fields(name=full_name, city=pick(CITIES)),
        "User {id} is {name} from {city}.",
    ),
    Concept(
        "track_order order_status get_order find_order",
        ["Get the status of an order.", "Track an order."],
        [S("code", "order code order_id number", "string", "Code of the order", code)],
        [
            "Where is my order {code}?",
            "What is the status of order {code}?",
            "Track order {code}.",
            "Please check order {code}.",
        ],
        fields(status=pick(["shipped", "packed", "delivered", "late", "lost"]), day=pick(DAYS)),
        "Order {code} is {status}. The day is {day}.",
    ),
    Concept(
        "get_population population country_population people_in",
        ["Get the population of a country.", "How many people live in a country."],
        [
            S(
                "country",
                "country nation state name",
                "string",
                "Name of the country",
                pick(COUNTRIES),
            )
        ],
        [
            "What is the population of {country}?",
            "How many people live in {country}?",
            "Tell me the population of {country}.",
        ],
        fields(millions=whole(1, 400)),
        "About {millions} million people live in {country}.",
    ),
    Concept(
        "read_file open_file get_file load_file",
        ["Read a file.", "Get the content of a file."],
        [
            S(
                "path",
                "path file filename name",
                "string",
                "Path of the file",
                lambda r: (
                    f"{r.choice(['docs', 'src', 'data', 'home'])}/{r.choice(THINGS)}.{r.choice(['txt', 'md', 'py', 'csv'])}"
                ),
            )
        ],
        ["Read the file {path}.", "What is in {path}?", "Show me {path}.", "Open the file {path}."],
        fields(content=lambda r: errand(r)),
        "The file {path} says: {content}",
    ),
    Concept(
        "set_alarm create_alarm alarm wake_up",
        ["Set an alarm.", "Wake the user at a time."],
        [
            S("time", "time at when clock", "string", "Time of the alarm", clock),
            S(
                "daily",
                "daily repeat every_day recurring",
                "boolean",
                "Ring every day",
                lambda r: True,
                [],
                " Do it every day.",
            ),
        ],
        ["Set an alarm for {time}.", "Wake me at {time}.", "I need an alarm at {time}."],
        done(),
        "The alarm is set for {time}.",
    ),
    Concept(
        "rate_product add_rating give_rating rate",
        ["Rate a product.", "Give a product a number of stars."],
        [
            S("product", "product item name thing", "string", "Name of the product", two_words),
            S("stars", "stars rating score points", "integer", "From 1 to 5", whole(1, 5)),
            S(
                "public",
                "public visible shared",
                "boolean",
                "Show it to others",
                lambda r: False,
                [],
                " Keep it private.",
            ),
        ],
        [
            "Give the {product} {stars} stars.",
            "Rate the {product} with {stars} stars.",
            "I rate the {product} {stars} out of 5.",
        ],
        done(),
        "You gave the {product} {stars} stars.",
    ),
]


def say(value):
    """How a user or an answer writes a value: booleans as on/off, numbers plainly."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def spell_name(rng, name):
    """The function name: as listed, camel case, with a prefix or a suffix, or unrelated to what it
    does.
    """
    style = rng.random()
    if style > 0.9:
        return rng.choice(
            [
                f"{rng.choice(VERBS)}_{rng.choice(THINGS)}",
                invented(rng),
                f"tool_{rng.randint(1, 99)}",
            ]
        )
    if style > 0.7:
        return (
            name
            + "_"
            + rng.choice(
                [rng.choice(THINGS), rng.choice(VERBS), invented(rng), str(rng.randint(1, 9))]
            )
        )
    if style < 0.12:
        first, *rest = name.split("_")
        return first + "".join(part.title() for part in rest)
    if style < 0.17:
        return rng.choice(["api", "home", "my", "app"]) + "_" + name
    return name


def parameter_schema(rng, slot, described):
    """Type, description (always when the name alone does not tell) and allowed values."""
    schema = {"type": slot.kind}
    if described or rng.random() < 0.8:
        schema["description"] = slot.about
    if slot.enum:
        schema["enum"] = slot.enum
    return schema


def wrap_function(rng, name, about, properties, required):
    """A tool in OpenAI's form."""
    parameters = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    return {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": parameters},
    }


def draw_tool(rng, concept):
    """A concrete tool of a concept: (tool in OpenAI's form, {slot key: parameter name})."""
    names, taken = {}, set()
    for slot in concept.slots:
        free = [n for n in slot.names.split() if n not in taken]
        names[slot.key] = free[0] if rng.random() < 0.35 else rng.choice(free)
        if rng.random() < 0.15:
            names[slot.key] = rng.choice(
                [
                    f"{slot.kind}_{rng.randint(1, 9)}",
                    free[0] + "_" + rng.choice(THINGS),
                    free[0].title(),
                ]
            )
        if names[slot.key] in taken:
            return draw_tool(rng, concept)
        taken.add(names[slot.key])
    plain = {n for slot in concept.slots for n in slot.names.split()}
    properties = {
        names[s.key]: parameter_schema(rng, s, names[s.key] not in plain) for s in concept.slots
    }
    required = [names[s.key] for s in concept.slots if not s.tail]
    name = spell_name(rng, rng.choice(concept.names.split()))
    return wrap_function(rng, name, rng.choice(concept.about), properties, required), names


def draw_call(rng, concept, tool, names):
    """A request for the tool: dict(ask, name, arguments, result, answer, must)."""
    values = {s.key: s.draw(rng) for s in concept.slots if not s.tail or rng.random() < 0.4}
    if values.get("src") is not None and values["src"] == values.get("dst"):
        return draw_call(rng, concept, tool, names)
    words = {k: say(v) for k, v in values.items()}
    ask = rng.choice(concept.asks).format(**words)
    ask += "".join(s.tail.format(**words) for s in concept.slots if s.tail and s.key in values)
    result = concept.result(rng, values)
    shown = {**words, **{k: say(v) for k, v in result.items() if k != "status"}}
    if concept.answer.find("{status}") >= 0:
        shown["status"] = result["status"]
    must = [say(v) for k, v in result.items() if k != "status" or "{status}" in concept.answer]
    must = must or [word for key, word in words.items() if "{" + key + "}" in concept.answer]
    return {
        "ask": ask,
        "name": tool["function"]["name"],
        "arguments": {names[k]: v for k, v in values.items()},
        "result": json.dumps(result),
        "answer": concept.answer.format(**shown),
        "must": must,
    }


INVENTED_KINDS = {
    "string": lambda r: r.choice(
        [two_words, lambda q: q.choice(THINGS), lambda q: q.choice(FIRST_NAMES), code]
    )(r),
    "integer": whole(0, 999),
    "number": decimal(0, 99),
    "boolean": pick([True, False]),
}


def draw_invented(rng):
    """A tool with meaningless names, called by name: teaches reading the schema rather than
    guessing it.
    """
    name = rng.choice(
        [
            invented(rng),
            invented(rng) + "_" + rng.choice(VERBS),
            rng.choice(VERBS) + "_" + rng.choice(THINGS),
        ]
    )
    words = THINGS + ADJECTIVES + VERBS
    keys = rng.sample(words, rng.randint(1, 4))
    kinds = {k: rng.choice(list(INVENTED_KINDS)) for k in keys}
    properties = {
        k: {"type": kinds[k], **({"description": f"The {k} to use"} if rng.random() < 0.3 else {})}
        for k in keys
    }
    tool = wrap_function(
        rng,
        name,
        rng.choice(["Run " + name + ".", "Does a job.", "A special tool."]),
        properties,
        list(keys),
    )
    arguments = {k: INVENTED_KINDS[kinds[k]](rng) for k in keys}
    shown = [f"{k} {json.dumps(v) if isinstance(v, bool) else v}" for k, v in arguments.items()]
    if rng.random() < 0.5:
        shown = [s.replace(" ", " = ", 1) for s in shown]
    listed = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
    ask = rng.choice(
        [
            "Call {n} with {a}.",
            "Use {n} with {a}.",
            "Run {n} with {a}.",
            "Please use the tool {n} with {a}.",
        ]
    )
    value = rng.choice([two_words(rng), str(rng.randint(0, 999)), code(rng)])
    result = rng.choice([json.dumps({"result": value}), value])
    return tool, {
        "ask": ask.format(n=name, a=listed),
        "name": name,
        "arguments": arguments,
        "result": result,
        "answer": f"The result is {value}.",
        "must": [value],
    }
