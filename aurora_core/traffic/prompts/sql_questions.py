"""Text to SQL: a schema of one or two tables and a question about it."""

from __future__ import annotations

from random import Random

from aurora_core.traffic.prompts.sql_tables import PARENTS, Column, Table, read_tables

_OPENINGS = (
    "Here is a database table:",
    "Given this schema:",
    "I have the following SQLite table.",
    "Use this schema to answer the question.",
    "The database contains:",
    "Schema:",
    "Consider this table definition:",
    "You are a SQL assistant. The schema is:",
    "Write SQL for the schema below.",
    "Our database has this structure:",
)

_CLOSINGS = (
    "Write one SQL query that answers the question.",
    "Give the SQL query and explain it in one sentence.",
    "Answer with a SQL query, then say briefly how it works.",
    "Write the query and describe each clause in a few words.",
    "Return a single statement with a short explanation.",
    "Write the SQL query first, then say what it does.",
    "Please write the query.",
    "Show the SQL query and name the columns it uses.",
)

_TABLES = read_tables()
_BY_NAME = {table.name: table for table in _TABLES}


def draw(random: Random) -> str:
    """Return a schema, a question and what to write."""
    if random.random() < 0.3:
        schema, question = _join(random)
    else:
        table = _thinned(random.choice(_TABLES), random)
        schema, question = _create(table, random), _question(table, random)
    closing = random.choice(_CLOSINGS)
    if random.random() < 0.5:
        return f"{random.choice(_OPENINGS)}\n\n{schema}\n\nQuestion: {question}\n{closing}"
    return f"{schema}\n\n{question} {closing}"


def _thinned(table: Table, random: Random) -> Table:
    """Leave out a column now and then, and shuffle the rest, so that schemas differ."""
    columns = list(table.columns[1:])
    if len(columns) > 4 and random.random() < 0.6:
        extra = [column for column in columns if len(table.of_kind(column.kind)) > 1]
        if extra:
            columns.remove(random.choice(extra))
    random.shuffle(columns)
    return Table(table.name, table.rows, (table.columns[0], *columns))


def _create(table: Table, random: Random, reference: str = "") -> str:
    parts = [f"{column.name} {column.sql_type}" for column in table.columns]
    if reference:
        parts.append(reference)
    if random.random() < 0.5:
        return f"CREATE TABLE {table.name} ({', '.join(parts)});"
    lines = ",\n".join(f"  {part}" for part in parts)
    return f"CREATE TABLE {table.name} (\n{lines}\n);"


def _threshold(column: Column, random: Random) -> str:
    number = random.randint(column.low, column.high - 1)
    if column.high > 20_000:
        number = max(1000, number // 1000 * 1000)
    elif column.high > 1_000:
        number = max(50, number // 50 * 50)
    if column.sql_type == "REAL" and column.high <= 10:
        return f"{number}.5"
    return str(number)


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeio' else 'a'} {words}"


def _day(random: Random) -> str:
    return f"{random.randint(2015, 2024)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _question(table: Table, random: Random) -> str:
    rows = table.rows
    text = random.choice(table.of_kind("text", "cat"))
    number = random.choice(table.of_kind("num") or table.of_kind("key"))
    low, high = sorted((_threshold(number, random), _threshold(number, random)), key=float)
    questions = [
        f"List the {text.words} of the {random.randint(3, 20)} {rows} with the highest "
        f"{number.words}.",
        f"How many {rows} have {_a(number.words)} above {_threshold(number, random)}?",
        f"Show the {text.words} and {number.words} of all {rows}, sorted by {number.words} from "
        "high to low.",
        f"Which {rows} have {_a(number.words)} above the average of all {rows}?",
        f"Find the {text.words} of the {rows} whose {number.words} lies between {low} and {high}.",
        f"What are the lowest and the highest {number.words} of all {rows}?",
        f"Delete all {rows} whose {number.words} is below {_threshold(number, random)}.",
        f"Increase the {number.words} of all {rows} by {random.randint(2, 25)} percent.",
    ]
    for category in table.of_kind("cat"):
        value = random.choice(category.values)
        questions += [
            f"How many {rows} are there for each {category.words}?",
            f"What is the average {number.words} of {rows} with {category.words} '{value}'?",
            f"Which {category.words} has the most {rows}?",
            f"For each {category.words}, find the {rows} with the highest {number.words}.",
            f"Show every {category.words} whose total {number.words} is more than "
            f"{_threshold(number, random)}.",
            f"List all {rows} with {category.words} '{value}' and {_a(number.words)} of at least "
            f"{_threshold(number, random)}.",
            f"What share of all {rows} has the {category.words} '{value}'?",
            f"Change the {category.words} of all {rows} with {_a(number.words)} under "
            f"{_threshold(number, random)} to '{value}'.",
        ]
    for date in table.of_kind("date"):
        year = random.randint(2015, 2024)
        questions += [
            f"Which {rows} have {_a(date.words)} after {_day(random)}?",
            f"How many {rows} have their {date.words} in {year}?",
            f"Show the {text.words} of the {random.randint(2, 12)} {rows} with the most recent "
            f"{date.words}.",
            f"What is the total {number.words} of {rows} for each year of the {date.words}?",
            f"Find the {text.words} and {date.words} of {rows} with {_a(number.words)} over "
            f"{_threshold(number, random)}, newest first.",
        ]
    return random.choice(questions)


def _join(random: Random) -> tuple[str, str]:
    parent, parents, one, children = random.choice(PARENTS)
    table = _thinned(_BY_NAME[random.choice(children.split())], random)
    columns = tuple(column for column in table.columns if column.name != one)
    table = Table(table.name, table.rows, columns[:4])
    rows = table.rows
    owner = Table(
        parent,
        parents,
        (
            Column("id", "INTEGER PRIMARY KEY", "key"),
            Column("name", "TEXT", "text", "name"),
            random.choice(
                (
                    Column("country", "TEXT", "cat", "country", ("Chile", "Kenya", "Spain")),
                    Column("city", "TEXT", "cat", "city", ("Porto", "Leeds", "Busan")),
                    Column("founded", "INTEGER", "num", "founding year", (), 1950, 2020),
                )
            ),
        ),
    )
    reference = f"{one}_id INTEGER REFERENCES {parent}(id)"
    schema = f"{_create(owner, random)}\n{_create(table, random, reference)}"
    questions = [
        f"How many {rows} does each {one} have? Show the name and the count.",
        f"List the names of all {parents} that have no {rows}.",
        f"Which {one} has the most {rows}?",
        f"Show the names of {parents} with more than {random.randint(2, 30)} {rows}.",
        f"List every one of the {rows} together with the name of its {one}.",
    ]
    for number in table.of_kind("num"):
        questions += [
            f"What is the average {number.words} of the {rows} of each {one}?",
            f"Show the names of {parents} whose {rows} have a total {number.words} above "
            f"{_threshold(number, random)}.",
            f"Which {one} has the {rows} with the highest {number.words}?",
        ]
    extra = owner.columns[2]
    if extra.kind == "cat":
        value = random.choice(extra.values)
        questions.append(f"How many {rows} belong to {parents} with {extra.words} '{value}'?")
    return schema, random.choice(questions)
