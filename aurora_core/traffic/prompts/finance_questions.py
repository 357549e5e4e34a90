"""Finance: small statements, interest and loans, terms explained, and a bank's customers."""

from __future__ import annotations

from random import Random

from aurora_core.traffic.prompts.names import FIRMS, PEOPLE, PLACES
from aurora_core.traffic.prompts.template import fill, listed, sentence

_WORDS = {
    "name": PEOPLE,
    "city": PLACES,
    "firm": FIRMS,
    "term": listed(
        "compound interest,an emergency fund,a credit score,diversification,inflation,a bond,"
        "a stock dividend,an index fund,a mutual fund,liquidity,working capital,gross margin,"
        "net profit,cash flow,depreciation,amortisation,a balance sheet,an income statement,"
        "equity,return on equity,the debt ratio,a budget deficit,an interest rate,"
        "a fixed rate mortgage,a variable rate loan,collateral,an overdraft,a pension plan,"
        "capital gains,tax deduction,dollar cost averaging,the price to earnings ratio,"
        "market capitalisation,a bear market,a bull market,a stock split,"
        "an initial public offering,credit risk,hedging,a currency exchange rate,"
        "break-even analysis,opportunity cost,accounts payable,accounts receivable,"
        "operating expenses,fixed costs,variable costs,a letter of credit,an annuity,net worth"
    ),
    "audience": listed(
        "a teenager,a small business owner,a new investor,a retired couple,"
        "a first year student,someone with little savings,a freelance designer,"
        "a family with two children,a farmer,the owner of a cafe"
    ),
    "goal": listed(
        "a used car,a house deposit,a wedding,a long trip,a new kitchen,a laptop,retirement,"
        "a year of study,a small boat,moving to {city2},solar panels"
    ),
    "expense": listed(
        "rent,groceries,transport,insurance,eating out,clothes,heating,phone and internet,"
        "gifts,hobbies,medicine,school fees"
    ),
    "product": listed(
        "savings account,credit card,student loan,mortgage,travel insurance policy,debit card,"
        "current account,car loan,brokerage account,joint account"
    ),
    "trouble": listed(
        "a payment of ${a:20-900/5} was charged twice,my card was declined in {city},"
        "the transfer to {city} has not arrived after {d:2-9} days,"
        "I forgot the code of my card,the cash machine kept my card,"
        "I see a payment of ${a:20-900/5} that I do not know,the exchange rate looks wrong,"
        "my salary has not been booked,I want to raise my limit to ${a:500-9000/500},"
        "the app does not let me log in,a refund of ${a:15-400/5} is missing,"
        "I was charged a fee of ${a:3-60} for a transfer,I would like to close my account,"
        "my new card has not arrived after {d:5-21} days"
    ),
    "habit": listed(
        "buys lunch every working day for ${a:6-18},"
        "pays ${a:20-120/5} a month for a gym that is rarely used,"
        "orders food {d:2-6} times a week for ${a:12-40},"
        "has {d:3-8} subscriptions of ${a:6-25} each,takes a taxi to work for ${a:9-30},"
        "buys a new phone every year for ${a:400-1400/50}"
    ),
}

_EXPLANATIONS = (
    "What is {term}, and why does it matter for {audience}?",
    "Explain {term} to {audience} in a few sentences.",
    "What is the difference between {term} and {term2}?",
    "Give {audience} an example of {term} with simple numbers.",
    "How is {term} connected with {term2}? Answer briefly.",
    "Name three things {audience} should know about {term}.",
    "Is {term} more important than {term2} for {audience}? Give a short reason.",
    "What should {audience} check before getting a {product}?",
    "What are two advantages and two risks of a {product} for {audience}?",
    "Which mistakes does {audience} often make with {term}? Name two.",
    "How can {audience} learn about {term} without losing money?",
)

_CALCULATIONS = (
    "{name} puts ${a:500-20000/500,} into an account with {r:1-9}% interest per year. How much is "
    "there after {n:2-15} years if the interest is added once a year?",
    "{name} borrows ${a:1000-30000/500,} at {r:3-15}% simple interest for {n:2-8} years. How much "
    "interest is paid in total?",
    "{name} wants to save ${a:1000-40000/500,} for {goal} in {n:2-6} years. How much has to be put "
    "aside every month?",
    "{name} earns ${a:1500-7000/100,} a month and spends ${b:300-1400/50,} on {expense} and "
    "${c:60-500/20} on {expense2}. Which share of the income is that, and is it reasonable?",
    "{name} {habit}. How much would be saved in a year with half of that?",
    "A share of {firm} costs ${a:20-400} and pays a dividend of ${b:1-12} a year. What is the "
    "dividend yield, and what does it tell an investor?",
    "{name} bought {n:10-200/10} shares of {firm} at ${a:10-90} and sold them at ${b:20-140}. What "
    "is the gain or loss in dollars and in percent?",
    "{firm} earned ${a:2-60} per share, and the share price is ${b:80-900/10}. Compute the price "
    "to earnings ratio and say what it means.",
    "{firm} sells a product for ${a:20-90} that costs ${b:5-18} to make. Fixed costs are "
    "${c:10000-90000/1000,} a year. How many units must be sold to break even?",
    "A machine of {firm} costs ${a:10000-90000/5000,} and lasts {n:4-12} years. What is the yearly "
    "depreciation by the straight line method?",
    "{firm} has assets of ${a:400-900/10} million and liabilities of ${b:100-390/10} million. What "
    "is its equity, and what is its debt ratio?",
    "Inflation is {r:2-9}% a year. What will something that costs ${a:50-900/50} today cost in "
    "{n:2-10} years?",
    "{name} owes ${a:1000-9000/500,} on a credit card at {r:14-29}% a year and pays "
    "${b:50-400/50} a month. What happens to the debt in the first two months?",
)

_ADVICE = (
    "Should {name} pay off a loan at {r:4-14}% or invest at an expected {s:3-9}% a year? Explain "
    "the choice in a few sentences.",
    "{name} from {city} wants to save for {goal} with ${a:50-600/50} a month. Make a simple plan.",
    "Make a monthly budget for {audience} with an income of ${a:1200-6000/100,}. List the main "
    "items, with {expense} and {expense2} among them.",
    "{name} {habit}. Suggest a cheaper habit, and estimate what it saves.",
    'A customer of {firm} writes: "{trouble}." Write a short, friendly answer.',
    "I have a question about my {product}: {trouble}. What should I do?",
    "{name} works for a bank in {city}. A customer says that {trouble}. What are the next steps?",
    "{name} lends {name2} ${a:100-4000/100,} for {goal}. What should they write down, and why?",
    "Write a short message in which {name} reminds a customer of {firm} of an invoice of "
    "${a:100-9000/50,} that is {d:5-60} days late.",
    "Suggest in a few sentences how {firm} could cut its costs for {expense}.",
)

_ITEMS = listed(
    "revenue,cost of sales,marketing,research,wages,rent,interest expense,income tax,"
    "other income,shipping,energy,licences"
)

_STATEMENT_QUESTIONS = (
    "By what percentage did {item} change from {first} to {last}?",
    "How much larger or smaller was {item} in {last} than in {first}?",
    "What is the total of {item} and {item2} in {last}?",
    "Which item changed the most between {first} and {last}?",
    "What is the ratio of {item} to {item2} in {first}?",
    "What was the average of {item} over both years?",
    "Describe the development of {item}.",
    "Is the trend of {item2} good or bad for the company? Explain briefly.",
)

_STATEMENT_OPENINGS = (
    "{firm}, figures in {unit}:",
    "From the annual report of {firm} ({unit}):",
    "The table shows figures of {firm} in {unit}.",
    "Extract from the books of {firm}, in {unit}:",
)

_CALCULATION_ENDINGS = (
    "",
    " Show the calculation.",
    " Keep the answer short.",
    " Answer in simple words.",
    " Explain your reasoning.",
    " Give the formula first.",
)

_TEXT_ENDINGS = (
    "",
    " Keep the answer short.",
    " Use simple words.",
    " Use at most five sentences.",
    " Avoid technical terms.",
)


def draw(random: Random) -> str:
    """Return one question; a third of them come with a small table."""
    kind = random.random()
    if kind < 0.35:
        return _statement(random)
    if kind < 0.6:
        question = random.choice(_CALCULATIONS)
        ending = random.choice(_CALCULATION_ENDINGS)
    else:
        question = random.choice(_EXPLANATIONS + _ADVICE)
        ending = random.choice(_TEXT_ENDINGS)
    return sentence(fill(question, _WORDS, random)) + ending


def _statement(random: Random) -> str:
    first = random.randint(2008, 2022)
    last = first + random.randint(1, 2)
    items = random.sample(_ITEMS, random.randint(2, 4))
    separator = random.choice((" | ", ", ", ": "))
    lines = []
    for item in items:
        amount = random.randint(40, 900)
        later = round(amount * random.uniform(0.6, 1.7))
        if separator == ": ":
            lines.append(f"{item}: {amount} in {first}, {later} in {last}")
        else:
            lines.append(separator.join((item, str(amount), str(later))))
    if separator != ": ":
        lines.insert(0, separator.join(("item", str(first), str(last))))
    unit = random.choice(("thousands of dollars", "millions of dollars", "thousands of euros"))
    opening = random.choice(_STATEMENT_OPENINGS).format(firm=random.choice(FIRMS), unit=unit)
    question = random.choice(_STATEMENT_QUESTIONS).format(
        item=items[0], item2=items[1], first=first, last=last
    )
    table = "\n".join(lines)
    return f"{opening}\n{table}\n\n{question}{random.choice(_CALCULATION_ENDINGS)}"
