"""Programming: write a function or a class, explain, fix, or find a command."""

from __future__ import annotations

from random import Random

from aurora_core.traffic.prompts.code_words import (
    BUGS,
    COMMANDS,
    CONCEPTS,
    ENTITIES,
    FUNCTIONS,
    SNIPPETS,
    WORDS,
)
from aurora_core.traffic.prompts.template import fill

_LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "Go", "Ruby", "C", "TypeScript")

_WRITE = (
    "Write a {language} function called `{function}` that {task}.",
    "Implement `{function}` in {language}. It {task}.",
    "In {language}, write a function `{function}` which {task}.",
    "I need a {language} function that {task}. Call it `{function}`.",
    "Please write `{function}` in {language}: a function that {task}.",
    "Complete this task in {language}: write a function named `{function}` that {task}.",
)

_WRITE_ENDINGS = (
    "",
    " Add a short docstring.",
    " Show one example call.",
    " Keep it under ten lines.",
    " Explain in one sentence how it works.",
    " Do not use any library.",
    " Handle empty input.",
    " Raise an error for invalid input.",
    " Add two simple tests.",
    " Prefer readable code over clever code.",
    " Return only the code.",
    " Mention its running time.",
)

_CLASSES = (
    "Write a {language} class `{entity}` with the fields {first}, {second} and {third}, and a "
    "method `{method}` that {action}.",
    "Design a small {language} class for a {words}. It stores {first}, {second} and {third} and "
    "has a method that {action}.",
    "Create a class `{entity}` in {language}. The constructor takes {first} and {second}. Add a "
    "method `{method}` which {action}.",
)

_CLASS_ENDINGS = (
    "",
    " Add a short example.",
    " Keep it simple.",
    " Include a readable text form.",
    " Explain the class in one sentence.",
)

_EXPLAIN = (
    "Explain what this {language} code does:\n\n{code}",
    "What does the following code print, and why?\n\n{code}",
    "Describe the code below in two or three sentences.\n\n{code}",
    "Add comments to this code and summarise it.\n\n{code}",
    "How could this code be made more readable?\n\n{code}",
    "What is the running time of this code? Give a short reason.\n\n{code}",
)

_FIX = (
    "This function should {purpose}, but it does not work. Find the bug and fix it.\n\n{code}",
    "My code is meant to {purpose}. What is wrong with it?\n\n{code}",
    "Fix the following function so that it will {purpose}, and explain the mistake.\n\n{code}",
    "A colleague wrote this to {purpose}. Review it and correct the error.\n\n{code}",
)

_COMMANDS = (
    "Which shell command will {command}? Explain the options.",
    "Write a bash one-liner to {command}.",
    "How do I {command} on the command line? Give the command and a short explanation.",
    "Show a Linux command to {command}, and say what each part does.",
    "I want to {command} in a terminal. What should I type?",
)

_CONCEPTS = (
    "Explain {concept} in {language} with a short example.",
    "What is {concept}, and when would you use it in {language}?",
    "Give a small {language} example of {concept} and describe it in two sentences.",
    "I am new to {language}. Can you show me {concept} with a few lines of code?",
    "What is a common mistake with {concept} in {language}?",
)


def draw(random: Random) -> str:
    """Return one task; half of them ask for a function."""
    kind = random.random()
    language = random.choice(_LANGUAGES)
    if kind < 0.5:
        function, task = random.choice(FUNCTIONS)
        text = random.choice(_WRITE).format(
            language=language, function=function, task=fill(task, WORDS, random)
        )
        return text + random.choice(_WRITE_ENDINGS)
    if kind < 0.68:
        return _class_task(language, random)
    if kind < 0.78:
        code = _block(fill(random.choice(SNIPPETS), WORDS, random))
        return random.choice(_EXPLAIN).format(language="Python", code=code)
    if kind < 0.86:
        purpose, code = random.choice(BUGS)
        block = _block(fill(code, WORDS, random))
        return random.choice(_FIX).format(purpose=purpose, code=block)
    if kind < 0.94:
        return random.choice(_COMMANDS).format(command=fill(random.choice(COMMANDS), WORDS, random))
    return random.choice(_CONCEPTS).format(language=language, concept=random.choice(CONCEPTS))


def _class_task(language: str, random: Random) -> str:
    entity, fields, methods = random.choice(ENTITIES)
    first, second, third = random.sample(fields, 3)
    method, action = random.choice(methods)
    text = random.choice(_CLASSES).format(
        language=language,
        entity="".join(word.capitalize() for word in entity.split()),
        words=entity,
        first=first,
        second=second,
        third=third,
        method=method,
        action=action,
    )
    return text + random.choice(_CLASS_ENDINGS)


def _block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
