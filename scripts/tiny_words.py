"""Word lists and small facts from which `tiny_data.py` composes its text.

Everything here is common knowledge written down by hand; no file is read and nothing is fetched.
"""

CAPITALS = dict(
    pair.split(":")
    for pair in """
Afghanistan:Kabul|Albania:Tirana|Algeria:Algiers|Andorra:Andorra la Vella|Angola:Luanda|Argentina:Buenos Aires
Armenia:Yerevan|Australia:Canberra|Austria:Vienna|Azerbaijan:Baku|Bahrain:Manama|Bangladesh:Dhaka|Barbados:Bridgetown
Belarus:Minsk|Belgium:Brussels|Belize:Belmopan|Bhutan:Thimphu|Bosnia:Sarajevo|Botswana:Gaborone|Brazil:Brasilia
Bulgaria:Sofia|Burundi:Gitega|Cambodia:Phnom Penh|Cameroon:Yaounde|Canada:Ottawa|Chad:Ndjamena|Chile:Santiago
China:Beijing|Colombia:Bogota|Costa Rica:San Jose|Croatia:Zagreb|Cuba:Havana|Cyprus:Nicosia|Czechia:Prague
Denmark:Copenhagen|Djibouti:Djibouti City|Ecuador:Quito|Egypt:Cairo|El Salvador:San Salvador|Eritrea:Asmara
Estonia:Tallinn|Ethiopia:Addis Ababa|Fiji:Suva|Finland:Helsinki|France:Paris|Gabon:Libreville|Gambia:Banjul
Georgia:Tbilisi|Germany:Berlin|Ghana:Accra|Greece:Athens|Guatemala:Guatemala City|Guinea:Conakry|Guyana:Georgetown
Haiti:Port-au-Prince|Honduras:Tegucigalpa|Hungary:Budapest|Iceland:Reykjavik|India:New Delhi|Indonesia:Jakarta
Iran:Tehran|Iraq:Baghdad|Ireland:Dublin|Italy:Rome|Jamaica:Kingston|Japan:Tokyo|Jordan:Amman|Kazakhstan:Astana
Kenya:Nairobi|Kuwait:Kuwait City|Kyrgyzstan:Bishkek|Laos:Vientiane|Latvia:Riga|Lebanon:Beirut|Lesotho:Maseru
Liberia:Monrovia|Libya:Tripoli|Liechtenstein:Vaduz|Lithuania:Vilnius|Luxembourg:Luxembourg City
Madagascar:Antananarivo|Malawi:Lilongwe|Malaysia:Kuala Lumpur|Maldives:Male|Mali:Bamako|Malta:Valletta
Mauritania:Nouakchott|Mauritius:Port Louis|Mexico:Mexico City|Moldova:Chisinau|Monaco:Monaco City|Mongolia:Ulaanbaatar
Montenegro:Podgorica|Morocco:Rabat|Mozambique:Maputo|Myanmar:Naypyidaw|Namibia:Windhoek|Nepal:Kathmandu
Netherlands:Amsterdam|New Zealand:Wellington|Nicaragua:Managua|Niger:Niamey|Nigeria:Abuja|North Korea:Pyongyang
North Macedonia:Skopje|Norway:Oslo|Oman:Muscat|Pakistan:Islamabad|Panama:Panama City|Paraguay:Asuncion|Peru:Lima
Philippines:Manila|Poland:Warsaw|Portugal:Lisbon|Qatar:Doha|Romania:Bucharest|Russia:Moscow|Rwanda:Kigali
Saudi Arabia:Riyadh|Senegal:Dakar|Serbia:Belgrade|Sierra Leone:Freetown|Singapore:Singapore City|Slovakia:Bratislava
Slovenia:Ljubljana|Somalia:Mogadishu|South Korea:Seoul|South Sudan:Juba|Spain:Madrid|Sudan:Khartoum
Suriname:Paramaribo|Sweden:Stockholm|Switzerland:Bern|Syria:Damascus|Taiwan:Taipei|Tajikistan:Dushanbe
Tanzania:Dodoma|Thailand:Bangkok|Togo:Lome|Tonga:Nukualofa|Tunisia:Tunis|Turkey:Ankara|Turkmenistan:Ashgabat
Uganda:Kampala|Ukraine:Kyiv|Uruguay:Montevideo|Uzbekistan:Tashkent|Vanuatu:Port Vila|Venezuela:Caracas|Vietnam:Hanoi
Yemen:Sanaa|Zambia:Lusaka|Zimbabwe:Harare
""".strip()
    .replace("\n", "|")
    .split("|")
)

OPPOSITES = [
    tuple(pair.split(":"))
    for pair in """
hot:cold big:small up:down open:closed early:late happy:sad light:dark wet:dry rich:poor strong:weak loud:quiet
hard:soft clean:dirty full:empty left:right near:far young:old thick:thin wide:narrow true:false day:night
push:pull win:lose buy:sell high:low quick:slow tall:short sweet:sour inside:outside above:below begin:end
heavy:weightless brave:cowardly smooth:rough deep:shallow polite:rude
""".split()
]

COLOURS = dict(
    pair.split(":")
    for pair in """
grass:green snow:white coal:black blood:red chocolate:brown milk:white lemons:yellow carrots:orange tomatoes:red
bananas:yellow strawberries:red cucumbers:green leaves:green elephants:grey salt:white emeralds:green rubies:red
spinach:green limes:green pumpkins:orange ravens:black flamingos:pink
""".split()
)

SOUNDS = dict(
    pair.split(":")
    for pair in """
dog:woof cat:meow cow:moo sheep:baa duck:quack horse:neigh pig:oink lion:roar rooster:cock-a-doodle-doo owl:hoot
snake:hiss frog:ribbit bee:buzz mouse:squeak crow:caw donkey:hee-haw wolf:howl
""".split()
)

YOUNG = dict(
    pair.split(":")
    for pair in """
dog:puppy cat:kitten cow:calf sheep:lamb horse:foal pig:piglet duck:duckling goat:kid lion:cub bear:cub hen:chick
frog:tadpole kangaroo:joey goose:gosling deer:fawn eagle:eaglet swan:cygnet
""".split()
)

ELEMENTS = dict(
    pair.split(":")
    for pair in """
hydrogen:H helium:He carbon:C nitrogen:N oxygen:O sodium:Na iron:Fe gold:Au silver:Ag copper:Cu lead:Pb calcium:Ca
potassium:K neon:Ne sulfur:S zinc:Zn tin:Sn mercury:Hg uranium:U lithium:Li
""".split()
)

SIDES = {
    "triangle": 3,
    "square": 4,
    "rectangle": 4,
    "pentagon": 5,
    "hexagon": 6,
    "heptagon": 7,
    "octagon": 8,
}
LEGS = {
    "spider": 8,
    "dog": 4,
    "cat": 4,
    "bird": 2,
    "ant": 6,
    "bee": 6,
    "horse": 4,
    "snake": 0,
    "crab": 10,
    "human": 2,
}
UNITS = [
    ("days", "a week", 7),
    ("months", "a year", 12),
    ("hours", "a day", 24),
    ("minutes", "an hour", 60),
    ("seconds", "a minute", 60),
    ("centimetres", "a metre", 100),
    ("grams", "a kilogram", 1000),
    ("metres", "a kilometre", 1000),
    ("weeks", "a year", 52),
    ("years", "a century", 100),
    ("years", "a decade", 10),
    ("letters", "the English alphabet", 26),
    ("millimetres", "a centimetre", 10),
]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
SEASONS = "spring summer autumn winter".split()
NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty""".split()

FIRST_NAMES = """Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olivia Paul Rosa Sam Tina
Victor Wendy Zoe Alice Bob Carol Daniel Eva Frank Gina Hugo Ivan Julia Karl Laura Marco Nina Oscar Petra Quinn Ruth
Simon Tara Uma Vera Will Yara Adam Bella Colin Dora Elena Fred Greta Hannah Ines James Kim Lena Mia Nick""".split()
LAST_NAMES = """Smith Jones Brown Miller Taylor Wilson Clark Lewis Walker Young King Wright Hill Green Baker Carter
Evans Parker Cook Bell Reed Cooper Ward Gray Price Wood Fisher Stone Hunt Palmer""".split()
CITIES = sorted(
    {c for c in CAPITALS.values() if " " not in c}
    | set(
        """London Chicago Boston Sydney Milan Munich Lyon
Barcelona Porto Osaka Mumbai Toronto Seattle Dallas Hamburg Naples Geneva Zurich Krakow Leeds""".split()
    )
)
COUNTRIES = sorted(CAPITALS)
FOODS = """pizza soup salad bread rice pasta cake cheese apples pears grapes plums honey butter eggs fish beans corn
onions carrots potatoes tea coffee juice water sugar flour pepper nuts""".split()
THINGS = """chair table lamp book pen cup plate bag coat hat shoe phone clock mirror box ball kite drum bell key ring
rope ladder bucket basket blanket pillow candle brush knife spoon fork bottle camera guitar piano violin bicycle
car train boat plane truck bus tent map compass hammer""".split()
ADJECTIVES = """red blue green yellow black white purple orange pink brown small large round square wooden metal plastic
glass shiny soft warm cold bright dark smooth heavy empty broken clean simple modern quiet""".split()
ANIMALS = """dog cat cow sheep duck horse pig lion owl snake frog bee mouse crow donkey wolf goat bear hen kangaroo goose
deer eagle swan tiger zebra rabbit fox whale shark dolphin camel monkey parrot turtle""".split()
JOBS = """doctor teacher nurse pilot farmer baker lawyer singer painter writer engineer plumber driver dentist chef
tailor gardener actor clerk judge""".split()
LANGUAGES = """English French German Spanish Italian Portuguese Dutch Swedish Polish Greek Turkish Japanese Korean Hindi
Arabic Russian Finnish Czech""".split()
CURRENCIES = "USD EUR GBP JPY CHF CAD AUD SEK NOK INR CNY BRL".split()
ROOMS = "kitchen bedroom bathroom garage hallway office garden cellar attic".split() + [
    "living room",
    "dining room",
]
VERBS = "find buy clean paint move open close carry bring check read draw build wash count hide pack sell".split()
SYMBOLS = "AAPL MSFT GOOG AMZN TSLA NVDA INTC AMD IBM ORCL NFLX SONY".split()
CONDITIONS = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"]
RELATIONS = "mother father brother sister neighbour boss friend aunt uncle cousin".split()

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
