"""School mathematics: word problems and short exercises, with their numbers drawn."""

from __future__ import annotations

from random import Random

from aurora_core.traffic.prompts.names import PEOPLE, PLACES
from aurora_core.traffic.prompts.template import fill, listed

_WORDS = {
    "name": PEOPLE,
    "city": PLACES,
    "fruit": listed(
        "apples,pears,plums,peaches,oranges,lemons,mangoes,apricots,kiwis,figs,melons,limes"
    ),
    "thing": listed(
        "notebooks,pencils,candles,stickers,mugs,posters,marbles,buttons,badges,postcards,"
        "shells,stamps,bracelets,keychains,batteries,light bulbs,flower pots,balloons,"
        "jars of honey,bars of soap"
    ),
    "baked": listed("muffins,cookies,pies,bagels,pretzels,cupcakes,rolls,waffles,scones,brownies"),
    "box": listed("boxes,crates,bags,baskets,trays,cartons"),
    "shop": listed(
        "bakery,bookshop,toy shop,hardware store,garden centre,music store,bike shop,pharmacy,"
        "stationery shop,farm stand"
    ),
    "animal": listed("sheep,goats,chickens,horses,rabbits,ducks,cows,llamas,geese"),
    "group": listed(
        "class,football club,choir,chess club,scout group,dance school,orchestra,theatre group"
    ),
    "vehicle": listed("train,bus,cyclist,truck,ferry,car,tram,delivery van,motorbike"),
    "room": listed("kitchen,bedroom,garage,hallway,classroom,office,terrace,workshop"),
    "gear": listed(
        "jacket,backpack,lamp,kettle,guitar,tent,desk,bicycle helmet,camera,watch,"
        "pair of boots,coffee grinder,sleeping bag,keyboard"
    ),
    "chore": listed(
        "paint a fence,clean the gym,pack the parcels,mow the lawn,fill the pool,"
        "plough the field,sort the mail,stack the chairs"
    ),
    "subject": listed("history,biology,geography,physics,French,chemistry,music,economics"),
    "shape_use": listed("garden,poster,playground,carpet,swimming pool,field,car park,mirror"),
    "liquid": listed("juice,paint,milk,olive oil,lemonade,syrup,rain water"),
    "ball": listed("red,blue,green,yellow,white,black"),
}

_PROBLEMS = (
    "{name} buys {n:3-15} {fruit} for ${a:2-6} each and {m:2-9} {fruit2} for ${b:1-5} each. How "
    "much does {name} spend in total?",
    "A {shop} sells {thing} in packs of {n:4-12}. {name} needs {m:50-200/5} {thing} for a party. "
    "How many packs should {name} buy?",
    "{name} has {n:40-120} {thing}. {name} gives {m:5-15} to {name2} and then shares the rest "
    "equally among {k:3-6} friends. How many {thing} does each friend get, and how many are left?",
    "A {vehicle} leaves {city} at {h:6-11} o'clock and travels at {v:40-95/5} km per hour. It "
    "stops once for {s:10-40/5} minutes. How far has it gone after {t:3-7} hours?",
    "The distance from {city} to {city2} is {d:120-900/10} km. A {vehicle} covers {v:40-110/5} km "
    "each hour. How long does the trip take in hours and minutes?",
    "A {gear} costs ${c:40-400/10}. The {shop} takes {r:5-40/5}% off, and {name} also has a "
    "voucher for ${v:5-20/5}. What does {name} pay?",
    "The price of a {gear} rose from ${a:20-80/2} to ${b:84-160/4}. By what percentage did the "
    "price increase?",
    "A recipe for {n:12-36/6} {baked} needs {a:200-600/50} grams of flour. How much flour does "
    "{name} need to make {m:40-100/10} {baked}?",
    "{name} bakes {n:24-96/6} {baked} and sells {r:25-75/25}% of them in the morning. In the "
    "afternoon {m:3-10} more are sold. How many {baked} are left?",
    "A farmer near {city} has {n:20-90} {animal} and {m:10-60} {animal2}. After selling "
    "{k:4-9} {animal} and buying {j:5-15} {animal2}, how many animals are on the farm?",
    "A farm has only {animal} and turkeys. There are {n:30-60} heads in total, and {k:8-20} of "
    "them are turkeys. How many {animal} are there and what fraction of all animals are they?",
    "{name} is {n:8-14} years old. {name2} is {k:3-9} years older than {name}. In how many years "
    "will the sum of their ages be {s:50-90/2}?",
    "{name} is {k:2-4} times as old as {name2}. Together they are {n:30-90/10} years old. How old "
    "is each of them?",
    "The floor of a {room} is {a:3-9} metres long and {b:2-8} metres wide. One tile covers a "
    "square of {c:20-50/10} centimetres by {c} centimetres. How many tiles are needed?",
    "A rectangular {shape_use} is {a:8-40} metres long and {b:4-25} metres wide. What are its area "
    "and its perimeter?",
    "A round {shape_use} has a radius of {r:2-14} metres. Find its area and circumference, using "
    "3.14 for pi.",
    "The perimeter of a square {shape_use} is {k:20-160/4} metres. What is its area?",
    "A triangle has a base of {a:6-30/2} cm and a height of {b:5-25} cm. What is its area, and how "
    "does the area change if the height is doubled?",
    "The {group} in {city} has {n:24-60/4} members. Three quarters of them take part in a trip, "
    "and each pays ${a:6-25}. How much money is collected?",
    "In a {group} of {n:20-60/2} people, {m:8-18} play the piano and the rest play the violin. "
    "What is the ratio of pianists to violinists in simplest form?",
    "{name} scored {a:60-95}, {b:60-95} and {c:60-95} points in three {subject} tests. What score "
    "is needed in the fourth test for an average of {m:75-90}?",
    "Find the mean, the median and the range of these {subject} scores: {a:51-70}, {b:71-99}, "
    "{c:40-99}, {d:60-80}, {e:45-95}.",
    "{name} can {chore} in {a:2-6} hours and {name2} can do it in {b:3-8} hours. How long do they "
    "need when they work together?",
    "It takes {n:3-8} people {h:4-12} hours to {chore}. How long would {m:2-10} people need at "
    "the same pace?",
    "{name} earns ${a:12-30} per hour and works {h:20-40} hours a week. If {name} saves "
    "{r:10-30/5}% of the pay, how much is saved in {w:4-12} weeks?",
    "{name} reads {n:12-40} pages a day. A book has {m:180-600/10} pages. On which day will "
    "{name} finish the book?",
    "A tank holds {n:100-900/50} litres of {liquid}. A pipe fills {a:5-20} litres per minute while "
    "a leak loses {b:1-4} litres per minute. How long does it take to fill the empty tank?",
    "{name} mixes {a:2-9} litres of {liquid} that cost ${b:2-8} per litre with {c:2-9} litres that "
    "cost ${d:1-7} per litre. What is the price per litre of the mixture?",
    "A bag holds {a:3-9} {ball} balls, {b:2-8} {ball2} balls and {c:2-7} {ball3} balls. What is "
    "the probability of drawing a {ball} ball, and of not drawing a {ball2} ball?",
    "Solve for x: {a:2-9}x + {b:3-30} = {c:35-99}. Check the answer by putting it back in.",
    "Solve the equation {a:4-12}x - {b:2-20} = {c:2-3}x + {d:5-40}.",
    "Two numbers add up to {s:40-150/2} and differ by {d:4-30/2}. What are the two numbers?",
    "A number is multiplied by {a:3-9}, then {b:4-25} is added, and the result is {c:60-150}. What "
    "was the number?",
    "The first term of a sequence is {a:2-15} and every next term is {d:3-11} larger. What is "
    "term number {n:10-30}, and what is the sum of the first {k:5-10} terms?",
    "What is the least common multiple of {a:4-30} and {b:6-40}? What is their greatest common "
    "divisor?",
    "Convert {a:2-15} hours and {b:5-55/5} minutes into minutes, and then into seconds.",
    "{name} runs {a:3-12} km in {b:20-80/5} minutes. What is the average speed in km per hour?",
    "A {shop} in {city} had {n:150-900/10} customers on Monday, {r:10-40/5}% more on Tuesday and "
    "{m:20-90/10} fewer on Wednesday than on Tuesday. How many customers came on Wednesday?",
    "{name} packs {n:90-400} {thing} into {box} that hold {k:6-24} each. How many full {box} are "
    "there and how many {thing} remain?",
    "A {shop} orders {n:5-20} {box} of {thing}. Every one of the {box} holds {k:12-48/4} pieces "
    "and costs ${c:15-60/5}. What does a single piece cost?",
    "{name} cuts a rope of {n:6-40} metres into pieces of {k:40-95/5} centimetres. How many whole "
    "pieces are there, and how long is the rest?",
    "The scale of a map is 1 to {s:20000-90000/10000,}. On the map, {city} and {city2} are "
    "{d:5-30} cm apart. How far apart are they in kilometres?",
    "{name} spends a third of the pocket money on {fruit}, a quarter on {thing}, and has "
    "${r:5-25/5} left. How much pocket money was there at first?",
    "Which is larger, {a:2-7}/{b:8-12} or {c:3-9}/{d:10-14}? Write both fractions with a common "
    "denominator.",
    "Compute {a:12-60} x {b:11-40} - {c:100-300} and explain how to check the result by rounding.",
    "A box measures {a:10-60/5} cm by {b:10-50/5} cm by {c:5-40/5} cm. What is its volume in cubic "
    "centimetres and in litres?",
    "The temperature in {city} was {a:2-9} degrees below zero at dawn and rose by {b:2-4} degrees "
    "every hour. What was it after {h:3-6} hours?",
    "{name} and {name2} share ${n:60-480/12} in the ratio {a:1-4} to {b:5-7}. How much does each "
    "of them get?",
)

_REQUESTS = (
    "",
    " Show the steps.",
    " Explain each step briefly.",
    " Work it out step by step and give the final answer.",
    " Write down the calculation and the answer in one sentence.",
    " Show your work.",
    " Solve it in a few short lines.",
    " Give the reasoning first, then the result.",
)


def draw(random: Random) -> str:
    """Return one problem."""
    return fill(random.choice(_PROBLEMS), _WORDS, random) + random.choice(_REQUESTS)
