"""What happens in stories: the plots, and the words that fill them.

Owns sentences and word lists. Slots: N and M are the names of the hero and the companion, H and G their kinds.
Whoever is meant is called by the name or as 'the fox', so that nobody can be mistaken. Does not own who they are.
"""

from __future__ import annotations

TRAITS = (
    "clever", "kind", "curious", "brave", "shy", "old", "young", "little", "cheerful", "patient", "gentle", "friendly",
    "lively",
)  # fmt: skip
LIKES = (
    "to sing in the morning", "to count the stars", "to collect shiny stones", "to read old books",
    "to bake sweet cakes", "to walk in the rain", "to listen to the wind", "to paint pictures", "to tell jokes",
    "to look at the clouds", "to sit by the fire", "to dance in the moonlight", "to sleep in the sun",
)  # fmt: skip
# Each thing has one look, so that 'the kite' later in the story is enough.
ITEMS = (
    "red kite", "silver bell", "blue scarf", "golden ring", "green hat", "wooden flute", "yellow ball", "old clock",
    "white shell", "little drum", "brown boat", "golden key", "small mirror", "round lamp",
)  # fmt: skip
GIFTS = (
    "little boat", "wooden flute", "small drum", "painted box", "wooden spoon", "little chair", "round lamp",
    "long whistle",
)  # fmt: skip
FOODS = ("apples", "berries", "nuts", "pears", "plums", "cherries", "carrots", "cakes")
FLOWERS = ("sunflower", "rose", "apple tree", "cherry tree", "tulip", "pumpkin")
SPOTS = (
    "under an old tree", "behind the mill wheel", "in the tall grass", "under the bridge", "in a hollow log",
    "between two rocks", "beside the path", "next to the well",
)  # fmt: skip
SKILLS = (
    "sing", "dance", "paint", "read", "whistle", "skate", "juggle", "play the flute", "bake bread", "tell stories",
)  # fmt: skip
MORALS = (
    "a friend is worth more than gold", "it is good to ask for help", "kindness comes back in the end",
    "two can do what one cannot",
)  # fmt: skip
LESSONS = ("small steps lead far", "patience is a strength", "it is brave to try again")
WEATHER = ("sunny", "rainy", "windy", "cold", "misty", "warm", "quiet", "bright")

OPENINGS = (
    "Once upon a time, {place}, there lived {a_trait} {H} named {N}.",
    "Once upon a time there was {a_trait} {H} named {N}, who lived {place}.",
    "{Place} there lived {a_trait} {H} named {N}.",
    "Long ago, {place}, there lived {a_trait} {H} named {N}.",
)
HABITS = (
    "{N} liked {likes}.",
    "Every day {N} liked {likes}.",
    "More than anything, {N} loved {likes}.",
)
ENDINGS = (
    "",
    "",
    "The end.",
    "And so they lived happily ever after.",
    "And that is the end of the story.",
    "And if you pass by one day, you may still hear {N} and {M} laugh.",
)

# Each plot is a list of steps, each step a choice of sentences. The opening comes before it.
PLOTS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (  # A mill without water, after the name of the project.
        ("One summer the wheel of the old mill stood still.", "One {weather} morning the mill wheel stopped turning."),
        ("Without the wheel there was no flour and no bread.", "There was no flour, and soon there was no bread."),
        ("{N} followed the headrace, the channel that brings water to the mill.",
         "So the {H} walked along the headrace, the channel that brings water to the mill."),
        ("At its end {they} met {a_helper} named {M}, who was sitting on a big fallen tree.",
         "There {they} met {a_helper} named {M}, who was looking at a big fallen tree."),
        ('"This tree stops the water," said {M}. "Let us move it together."',
         '"The water cannot get through," said {M}. "Will you help me?"'),
        ("{N} pulled, {M} pushed, and at last the water ran again.",
         "The {H} and the {G} worked until noon, and then the water ran again."),
        ("The wheel turned, and that evening there was fresh bread for everybody.",
         "Soon the wheel was turning, and everybody thanked {N} and {M}."),
    ),
    (  # Something is lost and found.
        ("One {weather} day {N} lost {their} {item}.", "One {weather} morning {N} could not find {their} {item}."),
        ("{They} looked everywhere, but the {thing} was gone.", "The {H} searched the whole day and found nothing."),
        ("Then {they} met {a_helper} named {M}.", "On the way home {they} met {a_helper} named {M}."),
        ('"Do not be sad," said {M}. "We will look for it together."',
         '"I have good eyes," said {M}. "Let me help you."'),
        ("Together they found the {thing} {spot}.", "Before the sun went down, {M} saw the {thing} {spot}."),
        ("{N} thanked {M}, and from that day on the {H} and the {G} were friends.",
         "{N} was so happy that {they} danced around the {G}."),
    ),
    (  # A journey with an obstacle.
        ("One {weather} day {N} wanted to cross the river.", "One day the {H} had to cross the wide river."),
        ("But the bridge was broken, and the water was deep.", "But the water was fast, and there was no bridge."),
        ("Then {they} met {a_helper} named {M}.", "On the bank {they} met {a_helper} named {M}."),
        ('"How can I get to the other side?" asked {N}.', '"Can you help me?" asked the {H}.'),
        ('"Let us build a boat," said {M}.', '"We can build a raft from old wood," said {M}.'),
        ("They worked until evening, and then the {H} and the {G} crossed the river together.",
         "{N} and {M} worked all day, and in the evening they stood on the other side."),
        ("{N} had learnt that {moral}.", "So {N} saw that {moral}."),
    ),
    (  # Food is shared.
        ("One {weather} day {N} found a basket full of {food}.", "One {weather} day {N} had a big basket of {food}."),
        ("{They} wanted to eat all the {food} alone.", "{They} hid the {food}, because {they} did not want to share."),
        ("Then {they} met {a_helper} named {M}, who was tired and hungry.",
         "On the way home {they} met {a_helper} named {M}, who had nothing to eat."),
        ("{N} thought for a while and gave {M} half of the {food}.",
         "{N} felt sorry for the {G} and shared the {food}."),
        ("The {H} and the {G} sat in the grass, ate and laughed.", "The {food} had never tasted so good."),
        ("That evening {N} knew that {moral}.", "From that day on {N} and {M} shared everything they had."),
    ),
    (  # A storm.
        ("One night a great storm came.", "One evening the sky turned black and a storm began."),
        ("The wind blew, the rain fell, and {N} was afraid.", "{N} heard the thunder and hid in a corner."),
        ("Then there was a knock at the door.", "Suddenly there was a small voice outside."),
        ("It was {a_helper} named {M}, who was wet and cold.", "There stood {a_helper} named {M}, shaking with cold."),
        ("{N} let the {G} in and made some hot soup.", "{N} opened the door and lit a warm fire for {M}."),
        ("Together they were not afraid any more.",
         "{N} and {M} told each other stories until the storm was over."),
        ("In the morning the sun was shining, and the {H} and the {G} were friends.",
         "In the morning {N} knew that {moral}."),
    ),
    (  # Learning a skill.
        ("{N} had one wish: {they} wanted to learn to {skill}.", "There was one thing {N} could not do: {skill}."),
        ("{They} tried on Monday, and it did not work.", "{They} tried once, and it went wrong."),
        ("Then {they} met {a_helper} named {M}, who could {skill} very well.",
         "One {weather} day {they} met {a_helper} named {M}, who could {skill} very well."),
        ('"Do not give up," said {M}. "I will show you how."', '"You must be patient," said {M}. "I will help you."'),
        ("So the {H} practised a little every day.", "So {N} practised every day, in sun and in rain."),
        ("After a month {N} could {skill}, and the {G} cheered.", "At last it worked, and {M} was very proud."),
        ("{N} smiled, because now {they} knew that {lesson}.", "Now {N} knew that {lesson}."),
    ),
    (  # A gift.
        ("{Their} best friend was {a_helper} named {M}.", "{N} had a good friend, {a_helper} named {M}."),
        ("The next day was {M}'s birthday, but {N} had no money for a present.",
         "It was nearly {M}'s birthday, and {N} did not know what to give."),
        ("So the {H} took some wood and made a {gift}.", "So {N} worked all night and made a {gift}."),
        ("In the morning {they} carried the {present} to {M} with a beating heart.",
         "In the morning {N} gave the {present} to the {G}."),
        ('"This is the best present of all," said {M}.', '"It is beautiful, because you made it," said {M}.'),
        ("{N} and {M} ate {food} and sang until the stars came out.",
         "The {H} and the {G} sang and danced until the stars came out."),
    ),
    (  # A quarrel.
        ("{Their} best friend was {a_helper} named {M}.", "{N} had a good friend, {a_helper} named {M}."),
        ("One {weather} day they both wanted the same {item}.", "One {weather} day they both found the same {item}."),
        ("{N} pulled and {M} pulled, until the {thing} broke in two.",
         "They pulled so hard that the {thing} broke in two."),
        ("That night {N} lay awake and thought about {M}.", "At home the {H} was sad and could not sleep."),
        ('"I am sorry," said {N} to {M} the next day.', "In the morning {N} went to the {G} and said sorry."),
        ('"I am sorry too," said {M}, and they both laughed.', "The {G} was sorry too, and the two friends laughed."),
        ("Together they repaired the {thing} and took turns with it.",
         "Together they repaired the {thing}, and they never fought again."),
    ),
    (  # The star.
        ("One clear night a small star fell from the sky.", "One night {N} saw a star fall from the sky."),
        ("{N} found it {spot}.", "It lay {spot} and shone only weakly."),
        ('"I want to go home," said the star.', '"Please help me to get back," whispered the star.'),
        ("So {N} asked {a_helper} named {M}, who knew the way up the highest hill.",
         "{N} took it to {a_helper} named {M}, who knew the highest hill."),
        ("Together the {H} and the {G} carried the star to the top.",
         "{N} and {M} climbed the whole night, step by step."),
        ("There the wind lifted the star, and it flew back into the sky.", "At the top the star jumped and flew home."),
        ("Every night it winks at {N} and {M}.", "Since then it shines for the {H} and the {G} every night."),
    ),
    (  # A treasure map.
        ("One {weather} day {N} found an old map {spot}.", "One {weather} day the wind brought an old map to {N}."),
        ("It showed the way to a treasure.", "A cross on the map showed where a treasure was."),
        ("{N} asked {a_helper} named {M} to come along.", "{N} set out with a friend, {a_helper} named {M}."),
        ("They went through a dark wood and over a high hill.",
         "The {H} and the {G} walked for three days and were very tired."),
        ("At last they found a box, and in it was only {an_item}.", "Under a stone they found only {an_item}."),
        ('"It is not gold," said {M}, "but we had a wonderful time."',
         '"The real treasure is the way we went together," said {M}.'),
        ("{N} laughed and agreed, and the two friends went home together.",
         "{N} kept the {thing}, to remember that {moral}."),
    ),
    (  # A seed.
        ("One spring day {N} planted a small seed.", "In spring {N} put a small seed into the earth."),
        ("{They} gave it water every day, but nothing grew.", "Every morning the {H} looked, but nothing grew."),
        ("Then {they} met {a_helper} named {M}.", "One {weather} day {they} met {a_helper} named {M}."),
        ('"A seed needs time," said {M}. "Let us wait together."',
         '"Give it sun and water and do not worry," said {M}.'),
        ("So the {H} and the {G} waited and told each other stories.",
         "So {N} and {M} sat beside it and sang to it every evening."),
        ("After a week there was a green leaf, and in summer there was {a_flower}.",
         "First came one green leaf, and by summer it was {a_flower}."),
        ("{N} had learnt that patience is a strength.", "{N} and {M} danced around it and were happy."),
    ),
    (  # A light in the dark.
        ("One {weather} evening {N} lost the way in a big wood.", "One evening {N} went for a walk and got lost."),
        ("It grew dark, and every path looked the same.", "Soon it was dark, and the {H} was afraid."),
        ("Then {they} saw a small light between the trees.", "Then a small light came nearer and nearer."),
        ("It was {a_helper} named {M} with a lamp.", "It was {a_helper} named {M}, who was carrying a lamp."),
        ('"Follow me," said {M}. "I know every path here."', '"Do not be afraid," said {M}. "I will take you home."'),
        ("So the {G} led the {H} safely home.", "{M} went first, {N} followed, and soon they were home."),
        ("{N} thanked {M} and made some hot soup for two.", "Since then {N} leaves a light in the window every night."),
    ),
)  # fmt: skip
