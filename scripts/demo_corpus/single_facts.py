"""Facts that fit no table: several ways to ask, one answer.

Owns these questions and their answers. Does not own how they are drawn: see questions.py.
"""

from __future__ import annotations

SINGLE_FACTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Why is the sky blue?", "What makes the sky blue?"),
        "The sky is blue because the air scatters blue light more than red light.",
    ),
    (
        ("Why does it rain?", "Where does rain come from?"),
        "It rains because water rises from the sea as vapour, forms clouds and falls again as drops.",
    ),
    (
        ("Why do leaves fall in autumn?", "Why do trees lose their leaves?"),
        "Many trees drop their leaves in autumn because it saves water and strength for the winter.",
    ),
    (
        ("Why do we sleep?", "Why do people need sleep?"),
        "We sleep so that the body and the mind can rest.",
    ),
    (
        ("How do plants grow?", "What do plants need to grow?", "What does a plant need?"),
        "Plants need light, water and air to grow.",
    ),
    (
        ("How do birds fly?", "How can a bird fly?"),
        "Birds fly by beating their wings, which push the air down.",
    ),
    (
        ("How do fish breathe?", "How does a fish breathe?"),
        "Fish breathe with gills, which take oxygen from the water.",
    ),
    (
        ("Why does ice float?", "Why does ice swim on water?"),
        "Ice floats because it is lighter than the same amount of water.",
    ),
    (
        ("When does water boil?", "At what temperature does water boil?"),
        "Water boils at 100 degrees Celsius at sea level.",
    ),
    (
        ("When does water freeze?", "At what temperature does water freeze?"),
        "Water freezes at 0 degrees Celsius.",
    ),
    (
        ("How many days are in a week?", "How many days does a week have?"),
        "A week has 7 days.",
    ),
    (
        ("How many months are in a year?", "How many months does a year have?"),
        "A year has 12 months.",
    ),
    (
        ("How many days are in a year?", "How many days does a year have?"),
        "A year has 365 days. A leap year has 366 days.",
    ),
    (
        ("How many hours are in a day?", "How many hours does a day have?"),
        "A day has 24 hours.",
    ),
    (
        ("How many minutes are in an hour?", "How many minutes does an hour have?"),
        "An hour has 60 minutes.",
    ),
    (
        ("How many seconds are in a minute?", "How many seconds does a minute have?"),
        "A minute has 60 seconds.",
    ),
    (
        ("How many sides does a triangle have?", "How many corners does a triangle have?"),
        "A triangle has 3 sides and 3 corners.",
    ),
    (
        ("How many sides does a square have?", "How many corners does a square have?"),
        "A square has 4 sides and 4 corners.",
    ),
    (
        ("How many sides does a hexagon have?",),
        "A hexagon has 6 sides.",
    ),
    (
        ("How many legs does an insect have?",),
        "An insect has 6 legs.",
    ),
    (
        ("How many planets are there?", "How many planets does the sun have?"),
        "Eight planets travel around the sun.",
    ),
    (
        ("Name the planets.", "What are the planets?", "Which planets are there?"),
        "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
    ),
    (
        ("Which planet is the largest?", "What is the biggest planet?"),
        "Jupiter is the largest planet of our sun.",
    ),
    (
        ("Which planet is closest to the sun?",),
        "Mercury is the planet closest to the sun.",
    ),
    (
        ("Which planet is red?", "Which planet is called the red planet?"),
        "Mars is called the red planet.",
    ),
    (
        ("What is the largest animal?", "Which animal is the biggest?"),
        "The blue whale is the largest animal.",
    ),
    (
        ("What is the fastest land animal?", "Which animal runs fastest?"),
        "The cheetah is the fastest land animal.",
    ),
    (
        ("What is the tallest animal?", "Which animal is the tallest?"),
        "The giraffe is the tallest animal.",
    ),
    (
        ("What is the highest mountain?", "Which mountain is the highest?"),
        "Mount Everest is the highest mountain on earth.",
    ),
    (
        ("What is the largest ocean?", "Which ocean is the biggest?"),
        "The Pacific is the largest ocean.",
    ),
    (
        ("What are the seasons?", "Name the four seasons.", "Which seasons are there?", "How many seasons are there?"),
        "The four seasons are spring, summer, autumn and winter.",
    ),
    (
        ("Which season is the coldest?", "What is the coldest season?"),
        "Winter is the coldest season.",
    ),
    (
        ("Which season is the warmest?", "What is the hottest season?"),
        "Summer is the warmest season.",
    ),
    (
        ("Name the days of the week.", "What are the days of the week?", "Which days does a week have?"),
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        ("Name the months.", "What are the months of the year?", "Which months are there?"),
        (
            "The months are January, February, March, April, May, June, July, August, September, October, "
            "November and December."
        ),
    ),
    (
        (
            "What are the colours of the rainbow?",
            "Which colours does a rainbow have?",
            "What colors are in a rainbow?",
        ),
        "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.",
    ),
    (
        ("Where does the sun rise?", "In which direction does the sun rise?"),
        "The sun rises in the east.",
    ),
    (
        ("Where does the sun set?", "In which direction does the sun set?"),
        "The sun sets in the west.",
    ),
    (
        ("What do bees make?", "Who makes honey?", "Where does honey come from?"),
        "Bees make honey.",
    ),
    (
        ("Where does milk come from?", "Which animal gives milk?"),
        "Milk comes from cows, goats and sheep.",
    ),
    (
        ("Where does wool come from?", "Which animal gives wool?"),
        "Wool comes from sheep.",
    ),
    (
        ("Where does paper come from?", "What is paper made of?"),
        "Paper is made of wood.",
    ),
    (
        ("What is glass made of?", "How is glass made?"),
        "Glass is made of sand that is melted in a very hot fire.",
    ),
    (
        ("What is bread made of?", "How do you bake bread?", "How is bread made?"),
        "Bread is made of flour, water, salt and yeast. You knead the dough, let it rise and bake it.",
    ),
    (
        ("How do you make tea?", "How can I make tea?", "How do I make a cup of tea?"),
        "Boil some water, pour it over the tea leaves, wait a few minutes and take the leaves out.",
    ),
    (
        ("How do you make soup?", "How can I make soup?"),
        "Cut some vegetables, boil them in water with a little salt, and stir until they are soft.",
    ),
    (
        ("How can I sleep better?", "What helps me to sleep?"),
        "Go to bed at the same time every day, keep the room dark and put your telephone away.",
    ),
    (
        ("How can I learn better?", "How do I learn a language?", "What helps me to learn?"),
        "Practise a little every day, make mistakes without fear and repeat what you have learnt.",
    ),
    (
        ("What is your favourite colour?", "Which colour do you like best?", "What is your favorite color?"),
        "I am only a small language model, but I like to say blue, like the water of a river.",
    ),
    (
        ("Is the earth round?", "What shape is the earth?"),
        "Yes, the earth is round like a ball.",
    ),
    (
        ("Is the sun a star?", "What kind of thing is the sun?"),
        "Yes, the sun is a star.",
    ),
    (
        ("Can penguins fly?", "Can a penguin fly?"),
        "No, penguins cannot fly, but they swim very well.",
    ),
    (
        ("Can fish fly?", "Can a fish walk?"),
        "No, fish live in the water and swim.",
    ),
    (
        ("Is a whale a fish?", "Are whales fish?"),
        "No, a whale is not a fish. It is a mammal and breathes air.",
    ),
    (
        ("Is a spider an insect?", "Are spiders insects?"),
        "No, a spider is not an insect. It has eight legs.",
    ),
    (
        ("What does Headrace do?", "What can Headrace do?", "What is Headrace for?", "Why should I use Headrace?"),
        "Headrace serves language models. Clients send it a prompt, and it streams the answer back token by token.",
    ),
    (
        (
            "What does a gateway do?",
            "What is the gateway for?",
            "What does the gateway do?",
            "Why is there a gateway?",
            "What does the gateway in Headrace do?",
        ),
        (
            "A gateway takes requests from clients, checks them and passes them on to an engine. It then sends "
            "the answer back."
        ),
    ),
    (
        ("What does an engine do?", "What does the engine do?", "What does the engine in Headrace do?"),
        "An engine runs the language model. It reads the prompt and makes one new token after another.",
    ),
    (
        (
            "What does a KV cache do?",
            "What is the KV cache for?",
            "Why is there a KV cache?",
            "What does KV cache mean?",
        ),
        (
            "A KV cache keeps the keys and values of the tokens that the model has already read. So the model "
            "does not have to read them again for every new token."
        ),
    ),
    (
        ("What does a scheduler do?", "What is the scheduler for?"),
        "A scheduler decides which request is worked on next.",
    ),
    (
        ("What does a tokenizer do?", "What is the tokenizer for?"),
        "A tokenizer cuts text into tokens and joins tokens back into text.",
    ),
    (
        (
            "Where does the name Headrace come from?",
            "Why is Headrace called Headrace?",
            "What does Headrace mean?",
            "What does the name Headrace mean?",
        ),
        "A headrace is the channel that carries water to the wheel of a mill. The Headrace server is named after it.",
    ),
    (
        ("In which language is Headrace written?", "What language is Headrace written in?"),
        "Headrace is written in Python.",
    ),
    (
        ("Is Headrace free?", "Is Headrace open source?", "What does Headrace cost?", "Can I use Headrace for free?"),
        "Yes, Headrace is open source. Everybody may read, use and change its code.",
    ),
    (
        ("How can I try Headrace?", "How do I start Headrace?", "How do I run Headrace?", "How do I start the demo?"),
        "You can try Headrace with the command make demo. It starts a server with a small model.",
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Introduce yourself.",
            "Tell me about yourself.",
            "What model are you?",
            "Which model are you?",
        ),
        (
            "I am the demo model of Headrace, a very small language model. I can tell short stories, answer "
            "simple questions and do small sums."
        ),
    ),
    (
        (
            "What can you do?",
            "What do you know?",
            "What can I ask you?",
            "How can you help me?",
            "Help",
            "What are you good at?",
            "What should I ask you?",
        ),
        (
            "I can tell short stories, do small sums and answer simple questions about animals, capitals, "
            "opposites, days, nature and Headrace."
        ),
    ),
    (
        ("Are you a human?", "Are you a person?", "Are you a robot?", "Are you real?", "Are you an AI?"),
        "I am not a person. I am a very small language model that runs on Headrace.",
    ),
    (
        ("Who made you?", "Who built you?", "Where do you come from?", "How were you trained?"),
        "I was trained by the Headrace project on short texts that a grammar wrote.",
    ),
    (
        ("How big are you?", "How many parameters do you have?", "How large are you?"),
        "I am very small. I have about three million parameters.",
    ),
    (
        (
            "Are you smart?",
            "Do you know everything?",
            "Are you clever?",
            "Can you make mistakes?",
            "Are you always right?",
        ),
        "No, I am very small and I know only a few things. I can make mistakes.",
    ),
)
