"""The small dictionary of the demo model: what something is, in a sentence or two.

Owns the definitions; those before "water" are the words of serving. Does not own how they are asked: see questions.py.
"""

from __future__ import annotations

DEFINITIONS = {
    "Headrace": (
        "Headrace is an open-source server for language models, written in Python. It takes requests over the "
        "network and writes the answers token by token."
    ),
    "a headrace": (
        "A headrace is the channel that carries water to the wheel of a mill. The Headrace server is named after it."
    ),
    "a gateway": (
        "A gateway takes requests from clients, checks them and passes them on to an engine. It then sends the "
        "answer back."
    ),
    "an engine": "An engine runs the language model. It reads the prompt and makes one new token after another.",
    "a KV cache": (
        "A KV cache keeps the keys and values of the tokens that the model has already read. So the model does "
        "not have to read them again for every new token."
    ),
    "a prefix cache": (
        "A prefix cache keeps the beginning of earlier prompts. A new prompt with the same beginning can then "
        "start faster."
    ),
    "a token": (
        "A token is a small piece of text, such as a word or a part of a word. A language model reads and writes "
        "tokens."
    ),
    "a tokenizer": "A tokenizer cuts text into tokens and joins tokens back into text.",
    "a language model": "A language model is a program that has learnt from text which token is likely to come next.",
    "a prompt": "A prompt is the text that you give to a language model. The model continues from it.",
    "a system prompt": "A system prompt tells the assistant how to behave. It comes before the first question.",
    "prefill": (
        "Prefill is the step in which the model reads the whole prompt at once, before it writes the first token."
    ),
    "decoding": "Decoding is the step in which the model writes the answer, one token at a time.",
    "a batch": "A batch is a group of requests that the model works on at the same time.",
    "continuous batching": (
        "Continuous batching lets new requests join a running batch as soon as there is room. Nobody has to wait "
        "for the slowest one."
    ),
    "streaming": "Streaming means that the answer is sent piece by piece while it is being written.",
    "latency": "Latency is the time that you wait for an answer.",
    "throughput": "Throughput is how much work is done in a given time, for example tokens per second.",
    "temperature in sampling": (
        "Temperature says how freely the model chooses its next token. A low temperature gives steady answers "
        "and a high one gives more varied answers."
    ),
    "greedy decoding": (
        "Greedy decoding always takes the most likely token. The same prompt then gives the same answer."
    ),
    "a transformer": (
        "A transformer is a kind of neural network. It uses attention to see which earlier tokens matter."
    ),
    "attention": "Attention is how a transformer decides which earlier tokens matter for the next one.",
    "a neural network": "A neural network is a program made of many simple units. It learns from examples.",
    "an embedding": "An embedding is a list of numbers that stands for a token or a text.",
    "a queue": "A queue is a line of requests that wait their turn.",
    "a scheduler": "A scheduler decides which request is worked on next.",
    "a replica": "A replica is one of several copies of an engine. More replicas can serve more people.",
    "load balancing": "Load balancing spreads requests over several engines, so that none of them has too much to do.",
    "a rate limit": "A rate limit says how many requests a client may send in a given time.",
    "an API": "An API is a set of rules that lets one program talk to another.",
    "an API key": "An API key is a secret text that shows a server who you are. Keep it to yourself.",
    "a server": "A server is a program that waits for requests and answers them.",
    "a client": "A client is a program that sends requests to a server.",
    "a computer": "A computer is a machine that follows instructions and works with data.",
    "a GPU": "A GPU is a chip that does many calculations at the same time. It makes language models fast.",
    "memory": "Memory is where a computer keeps the data that it is working on.",
    "open source": "Open source means that everybody may read, use and change the code of a program.",
    "Python": "Python is a programming language. It is easy to read, and Headrace is written in it.",
    "a bug": "A bug is a mistake in a program.",
    "a benchmark": "A benchmark is a test that measures how fast or how good a program is.",
    "water": "Water is a clear liquid that falls as rain and fills rivers and seas. All living things need it.",
    "ice": "Ice is water that is frozen. Water freezes at 0 degrees Celsius.",
    "steam": "Steam is water in the form of a gas. Water boils at 100 degrees Celsius at sea level.",
    "rain": "Rain is water that falls from the clouds in drops.",
    "snow": "Snow is frozen water that falls from the clouds in white flakes.",
    "a cloud": "A cloud is made of very small drops of water or pieces of ice that float in the air.",
    "wind": "Wind is air that moves.",
    "a rainbow": "A rainbow is an arc of colours in the sky. You can see it when the sun shines through rain.",
    "thunder": "Thunder is the sound that lightning makes.",
    "lightning": "Lightning is a large spark of electricity in the sky.",
    "the sun": "The sun is a star. It gives the earth light and warmth.",
    "the moon": "The moon is a ball of rock that travels around the earth. It takes about one month.",
    "a star": "A star is a huge, hot ball of gas that shines with its own light.",
    "a planet": "A planet is a large ball that travels around a star. The earth is a planet.",
    "the earth": "The earth is the planet on which we live. It travels around the sun once a year.",
    "gravity": "Gravity is the force that pulls things towards the earth. It makes an apple fall from the tree.",
    "a magnet": "A magnet pulls things made of iron towards itself.",
    "a shadow": "A shadow is a dark shape. It is there when something stands in the way of the light.",
    "an echo": "An echo is a sound that comes back to you from a wall or a hill.",
    "a seed": "A seed is a small part of a plant from which a new plant can grow.",
    "a tree": "A tree is a tall plant with a trunk of wood, branches and leaves.",
    "a forest": "A forest is a large piece of land with many trees.",
    "a river": "A river is a long stream of water that flows to a lake or to the sea.",
    "a lake": "A lake is a large body of water with land all around it.",
    "an island": "An island is a piece of land with water all around it.",
    "a mountain": "A mountain is a very high piece of land.",
    "a desert": "A desert is a dry land with very little rain.",
    "a volcano": "A volcano is a mountain that can throw out hot melted rock.",
    "a mill": "A mill is a building where grain is ground into flour. Water or wind can turn its wheel.",
    "a dam": "A dam is a wall that holds back the water of a river.",
    "bread": "Bread is food that is baked from flour, water and yeast.",
    "honey": "Honey is a sweet food that bees make from nectar.",
    "an insect": "An insect is a small animal with six legs. Ants and bees are insects.",
    "a bird": "A bird is an animal with feathers, two wings and two legs.",
    "a fish": "A fish is an animal that lives in water and breathes with gills.",
    "a heart": "A heart is the part of the body that pumps blood.",
    "a library": "A library is a place where you can read and borrow books.",
    "a school": "A school is a place where people learn.",
    "a dictionary": "A dictionary is a book that explains words.",
    "a triangle": "A triangle is a shape with three sides.",
    "a square": "A square is a shape with four equal sides and four right angles.",
    "a circle": "A circle is a round shape. Every point on it is equally far from its centre.",
    "a year": "A year has 365 days. A leap year has 366 days.",
    "a leap year": "A leap year has 366 days. Its extra day is the last day of February.",
    "friendship": "Friendship means that two people like, help and trust each other.",
}
