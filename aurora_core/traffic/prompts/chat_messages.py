"""Everyday conversation: explanations, advice, short texts, comparisons and plans."""

from __future__ import annotations

from random import Random

from aurora_core.traffic.prompts.names import PEOPLE, PLACES
from aurora_core.traffic.prompts.template import fill, listed, sentence

_WORDS = {
    "name": PEOPLE,
    "city": PLACES,
    "topic": listed(
        "how rainbows form,why the sky is blue,how vaccines work,why leaves change colour,"
        "how bees make honey,how a volcano erupts,why we dream,how tides work,how bread rises,"
        "why cats purr,how a camera takes a picture,how glaciers move,why the moon has phases,"
        "how a piano makes sound,why onions make us cry,how magnets work,"
        "how rivers shape valleys,why metal rusts,how birds find their way,"
        "how solar panels work,why ice floats,how a bicycle stays upright,"
        "how coffee keeps us awake,why stars twinkle,how paper is made,how whales communicate,"
        "why we sneeze,how elections work,how a refrigerator cools,how spiders build webs,"
        "why popcorn pops,how airplanes fly,how the heart pumps blood,"
        "why deserts are cold at night,how glass is made,how plants drink water,"
        "how earthquakes are measured,why bread gets stale,how a compass works,"
        "how chocolate is made"
    ),
    "listener": listed(
        "a five year old,a curious teenager,my grandmother,a school class,someone in a hurry,"
        "a friend who dislikes science,a visitor from another country,a new colleague"
    ),
    "activity": listed(
        "learning the guitar,running a first marathon,growing tomatoes on a balcony,"
        "writing a diary,learning Spanish,baking bread at home,taking better photos,"
        "keeping houseplants alive,sleeping better,speaking in public,reading more books,"
        "cleaning a small flat,cooking for one,training a puppy,learning to swim as an adult,"
        "playing chess,drawing faces,packing light for a trip,working from home,"
        "making new friends in a new city,hiking with children,saving water at home,"
        "starting a vegetable garden,meditating every day,sewing a simple bag,"
        "repairing a bicycle,hosting a board game night,preparing for an exam,"
        "learning to type fast,birdwatching"
    ),
    "trouble": listed(
        "my neighbour plays loud music at night,I cannot fall asleep before midnight,"
        "my plants have yellow leaves,I keep forgetting names,"
        "my roommate never washes the dishes,I get nervous before presentations,"
        "my phone battery is empty by noon,I feel tired every afternoon,"
        "my child refuses to eat vegetables,my bread never rises,I always arrive late,"
        "my dog barks at the door,I spend too much time on my phone,my soup is too salty,"
        "I lost my motivation to exercise,my shoes smell after running,"
        "I cannot decide what to study,my desk is always messy,I miss my old friends,"
        "my coffee tastes bitter"
    ),
    "pair": listed(
        "butter and olive oil,wool and cotton,lakes and rivers,crocodiles and alligators,"
        "moths and butterflies,jam and marmalade,oil paint and watercolour,"
        "a violin and a viola,frogs and toads,comets and asteroids,"
        "baking soda and baking powder,weather and climate,a fruit and a vegetable,"
        "rabbits and hares,hail and snow,a novel and a short story"
    ),
    "choice": listed(
        "tea or coffee,the train or the plane,a cat or a dog,city life or country life,"
        "paper books or an e-reader,running or cycling,a laptop or a tablet,"
        "working from home or in an office,renting or buying a flat,yoga or swimming,"
        "the sea or the mountains,cooking or eating out,early mornings or late evenings,"
        "a gas stove or an electric stove,a bicycle or a scooter"
    ),
    "food": listed(
        "lentils,rice,eggs,potatoes,tomatoes,chickpeas,mushrooms,spinach,pasta,carrots,bananas,"
        "oats,salmon,cabbage,pumpkin,beans,apples,yoghurt,zucchini,corn"
    ),
    "meal": listed("breakfast,lunch,dinner,a picnic,a late snack,a birthday party"),
    "event": listed(
        "a birthday party,a farewell dinner,a school fair,a family reunion,a book club,"
        "a housewarming party,a charity run,a garden party,a game night,a team lunch,"
        "a neighbourhood cleanup,a small wedding,a film evening,a poetry reading"
    ),
    "person": listed(
        "my boss,a neighbour,an old friend,my landlord,a teacher,a customer,my team,"
        "a job applicant,my sister,the city library,a hotel,a former colleague"
    ),
    "matter": listed(
        "to ask for a day off,to say thank you for a gift,to apologise for being late,"
        "to cancel an appointment,to invite them to {event},to ask for advice,"
        "to report a broken heater,to congratulate them on a new job,"
        "to move a meeting to {day},to return a borrowed book,to ask about opening hours,"
        "to suggest a walk on {day},to recommend a film,to ask for a quieter evening"
    ),
    "season": listed("spring,summer,autumn,winter"),
    "day": listed("Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday"),
    "hero": listed(
        "a lighthouse keeper,a young inventor,a lost robot,a baker,a shy dragon,a night nurse,"
        "a retired pilot,a clever fox,a cartographer,a street musician,two sisters,a beekeeper,"
        "a snow leopard,an old clockmaker,a train conductor,a librarian"
    ),
    "find": listed(
        "finds a map under the floor,hears a strange song,receives a letter from the future,"
        "loses a shadow,meets a talking owl,discovers a hidden garden,"
        "has to cross a frozen lake,learns to trust a stranger,saves a village from a flood,"
        "misses the last ferry,opens a shop for forgotten things,repairs a broken star,"
        "wins a race by accident"
    ),
    "form": listed(
        "a short poem,a four line rhyme,the opening of a story,a short dialogue,a haiku"
    ),
    "mood": listed("cheerful,quiet,mysterious,funny,hopeful,dreamy,dramatic"),
    "kind": listed(
        "board games for two,books about the sea,names for a black cat,hobbies for rainy days,"
        "small gifts under twenty dollars,stretches for the back,songs for a long drive,"
        "easy houseplants,questions for a first meeting,healthy snacks,"
        "words to describe a storm,names for a bakery,indoor games for children,"
        "topics for a science project,ways to reuse glass jars,exercises without equipment,"
        "autumn soups,team names,reasons to visit a museum,films for a family evening,"
        "things to do before moving house,polite ways to say no"
    ),
    "era": listed(
        "ancient Egypt,the Middle Ages,the Roman Empire,the Stone Age,the age of sail,"
        "the 1920s,the Renaissance,the time of the Vikings,the year 2200"
    ),
    "idea": listed(
        "nobody needed sleep,animals could talk,the sun rose in the west,it rained once a year,"
        "cars were never invented,everyone could fly,money did not exist,"
        "we lived under the sea,plants grew overnight,all people spoke one language,"
        "there was no electricity,the moon was twice as big"
    ),
}

_MESSAGES = (
    "Explain {topic} to {listener}.",
    "I have always wondered {topic}. Can you tell me?",
    "My daughter asked me {topic}. What should I tell her?",
    "Can you explain {topic}, and give one everyday example?",
    "Write a quiz question about {topic}, with the answer and a short explanation.",
    "Give me {n:3-6} tips for {activity}.",
    "I want to start {activity}. What should I do in the first week?",
    "What is the most common mistake in {activity}, and how can I avoid it?",
    "{name} has {n:10-60/5} minutes a day for {activity}. Suggest a simple plan.",
    "Why is {activity} good for {listener}?",
    "I need help: {trouble}. What can I do?",
    'My friend {name} says: "{trouble}." What would you answer?',
    "I have a problem: {trouble}. Give me {n:2-4} ideas.",
    "What is the difference between {pair}?",
    "Explain the difference between {pair} to {listener}.",
    "What is better for {listener}, {choice}? Give two reasons.",
    "{name} has to choose: {choice}. What are the pros and cons?",
    "Suggest a simple recipe for {meal} with {food} and {food2}.",
    "I only have {food}, {food2} and {food3}. What can I cook for {meal}?",
    "How do I store {food} and {food2} so that they stay fresh?",
    "Make a shopping list for {meal} for {n:2-12} people. It should contain {food}.",
    "Help me plan {event} for {n:6-60/2} people.",
    "Write a short invitation to {event} on {day} at {h:3-8} in the afternoon. It is from {name}.",
    "What could go wrong at {event} in {city}, and how do I prepare for it?",
    "Write a short message to {person} {matter}. Sign it with {name}.",
    "Write a polite email to {person} {matter}.",
    "I need to write to {person} {matter}. How should I begin?",
    "Write {form} about {hero} who {find}.",
    "Write {form} in a {mood} mood about {hero}.",
    "Tell me a short, {mood} story: {hero} {find}.",
    "Invent a title and a first line for a {mood} book about {hero} who {find}.",
    "I have {n:1-5} days in {city}. What should I see?",
    "What should I pack for {n:2-10} days in {city} in {season}?",
    "{name} moves from {city} to {city2}. What will be different? Name three things.",
    "Describe a quiet morning in {city} in {season}.",
    "Which gift would you choose for {person}, and why? I can spend ${n:10-100/5}.",
    "List {n:3-7} {kind}.",
    "I am looking for {kind}. Give me {n:3-6} and say why you like them.",
    "What was daily life like in {era}? Keep it simple enough for {listener}.",
    "Describe a normal {day} of {hero} in {era}.",
    "What would happen if {idea}? Think of {listener}.",
    "Imagine that {idea}. How would life in {city} change?",
    "Write a short speech for {event} in honour of {name}. The mood should be {mood}.",
    "{name} and {name2} argue whether {activity} or {activity2} is the better hobby. Help them.",
)

_REQUESTS = (
    "",
    " Keep it short.",
    " Use simple words.",
    " Answer in one paragraph.",
    " Be friendly.",
    " Use a short list.",
    " Not more than 80 words, please.",
)


def draw(random: Random) -> str:
    """Return one message."""
    text = fill(random.choice(_MESSAGES), _WORDS, random)
    return sentence(text) + random.choice(_REQUESTS)
