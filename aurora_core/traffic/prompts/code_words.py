"""Functions, classes, snippets, bugs and commands that programming prompts ask about."""

from __future__ import annotations

from aurora_core.traffic.prompts.template import listed

WORDS = {
    "noun": listed(
        "orders,users,scores,prices,words,names,temperatures,files,messages,cities,books,"
        "players,invoices,readings,tasks,products"
    ),
    "field": listed("name,age,price,score,date,city,length,priority,weight,rating"),
    "extension": listed("log,txt,csv,json,py,md,jpg,xml,html,yaml"),
    "folder": listed("/var/log,~/Documents,/tmp,./data,/etc,./src,~/Downloads,/srv/backup"),
    "pattern": listed("ERROR,TODO,timeout,password,import,warning,localhost,deprecated"),
    "variable": listed("total,result,count,items,values,answer,best,number"),
    "user": listed("alice,deploy,backup,guest,build,operator"),
    "host": listed("server1,db.example.org,10.0.0.5,example.com,build-node"),
}

FUNCTIONS = (
    ("is_palindrome", "checks whether a text reads the same forwards and backwards"),
    ("count_vowels", "counts the vowels in a text"),
    ("reverse_words", "reverses the order of the words in a sentence"),
    ("most_common", "returns the {n:2-9} most common {noun} in a list"),
    ("flatten", "turns a list of lists of {noun} into one flat list"),
    ("is_prime", "checks whether a number is prime"),
    ("primes_below", "returns all primes below {n:20-900/10}"),
    ("factorial", "computes the factorial of a whole number without recursion"),
    ("fibonacci", "returns the first {n:5-60} Fibonacci numbers"),
    ("merge_sorted", "merges two sorted lists of {noun} into one sorted list"),
    ("remove_duplicates", "removes duplicate {noun} from a list and keeps their order"),
    ("group_by", "groups a list of {noun} by their {field}"),
    ("sort_by", "sorts {noun} by {field} and then by {field2}"),
    ("average_of", "returns the average {field} of a list of {noun}"),
    ("filter_above", "returns all {noun} whose {field} is above {n:5-500/5}"),
    ("top_items", "returns the {n:2-15} {noun} with the highest {field}"),
    ("moving_average", "computes the moving average of {noun} with a window of {n:3-30}"),
    ("to_roman", "converts a number below {n:100-3900/100} to a Roman numeral"),
    ("from_binary", "converts a text of zeros and ones to a whole number"),
    ("to_base", "converts a whole number to base {n:2-16}"),
    ("caesar_cipher", "shifts every letter of a text by {n:2-25} places"),
    ("are_anagrams", "checks whether two words are anagrams of each other"),
    ("longest_word", "returns the longest word of a sentence"),
    ("words_longer_than", "counts the words with more than {n:3-12} letters"),
    ("title_case", "capitalises the first letter of every word"),
    ("snake_case", "converts a camel case name to snake case"),
    (
        "validate_email",
        "checks with a regular expression whether a text looks like an email address",
    ),
    ("parse_csv_line", "splits a line of comma separated {noun} into a list"),
    ("read_lines", "reads a .{extension} file and returns its lines without line ends"),
    ("count_lines", "counts the lines of a .{extension} file that contain the word {pattern}"),
    ("find_files", "returns all .{extension} files below a folder"),
    ("file_size", "returns the size of a file in kilobytes, rounded to {n:1-4} decimals"),
    ("write_json", "writes a list of {noun} to a JSON file"),
    ("days_between", "returns the number of days between two dates"),
    ("is_leap_year", "checks whether a year is a leap year"),
    ("age_in_years", "computes an age in years from a birth date"),
    ("format_seconds", "turns a number of seconds into hours, minutes and seconds"),
    ("binary_search", "finds the position of a value in a sorted list of {noun}"),
    ("bubble_sort", "sorts a list of {noun} with bubble sort"),
    ("second_largest", "returns the second largest value in a list"),
    ("kth_smallest", "returns the {n:4-9}th smallest value in a list"),
    ("rotate", "rotates a list of {noun} by {n:2-12} places to the left"),
    ("chunks", "splits a list of {noun} into parts of {n:2-50} elements"),
    ("pairs_with_sum", "finds all pairs of numbers in a list that add up to {n:10-200}"),
    ("common_elements", "returns the {noun} that appear in both of two lists"),
    ("transpose", "transposes a matrix given as a list of rows"),
    ("multiply_matrices", "multiplies two matrices of size {n:2-6} by {n}"),
    ("gcd", "computes the greatest common divisor of two numbers"),
    ("digit_sum", "returns the sum of the digits of a number"),
    ("is_armstrong", "checks whether a number equals the sum of its digits to the third power"),
    ("celsius_to_fahrenheit", "converts a list of temperatures from Celsius to Fahrenheit"),
    ("compound_interest", "computes the value of a deposit after {n:2-40} years of interest"),
    ("apply_discount", "reduces the price of all {noun} over {n:20-500/10} by {m:5-50/5} percent"),
    ("balanced_brackets", "checks whether the brackets in a text are balanced"),
    ("evaluate_postfix", "evaluates an arithmetic expression in postfix notation"),
    ("run_length_encode", "compresses a text by counting repeated letters"),
    ("word_frequencies", "returns how often each word occurs in a text"),
    ("invert_mapping", "swaps the keys and the values of a dictionary of {noun}"),
    ("merge_mappings", "merges two dictionaries of {noun} and adds up values with the same key"),
    ("retry", "calls another function up to {n:2-10} times until it does not fail"),
    ("timed", "measures how many milliseconds another function takes"),
    ("random_password", "makes a random password of {n:8-32} characters"),
    ("roll_dice", "rolls {n:2-10} dice and returns the sum"),
    ("triangle_area", "computes the area of a triangle from its three sides"),
    ("median", "returns the median of a list of {noun}"),
    ("normalise", "scales a list of numbers to the range from 0 to {n:1-100}"),
    ("fizz_buzz", "prints Fizz for multiples of {n:2-5} and Buzz for multiples of {m:6-11}"),
    ("truncate", "shortens a text to {n:10-120/5} characters and adds three dots"),
    ("mask_card_number", "hides all but the last {n:2-6} digits of a card number"),
    ("parse_query_string", "turns the query string of a URL into a dictionary"),
    ("depth_of_tree", "returns the depth of a binary tree"),
    ("breadth_first", "visits the nodes of a graph in breadth first order"),
    ("reverse_linked_list", "reverses a singly linked list"),
    ("cache_results", "remembers the last {n:10-500/10} results of another function"),
    ("count_by", "counts how many {noun} there are for each {field}"),
    ("oldest_first", "orders {noun} from the oldest to the newest {field}"),
    ("missing_number", "finds the missing number in a list from 1 to {n:10-500/10}"),
)
"""(name, what it does)."""

ENTITIES = (
    (
        "bank account",
        ("the owner", "the balance", "the currency", "the interest rate"),
        (("deposit", "adds money to the balance"), ("withdraw", "refuses to go below zero")),
    ),
    (
        "shopping cart",
        ("a list of items", "the customer", "a discount", "the delivery address"),
        (("total", "returns the price of all items"), ("remove", "takes one item out")),
    ),
    (
        "library book",
        ("the title", "the author", "the number of pages", "the due date"),
        (("borrow", "marks the book as lent"), ("is_overdue", "compares the due date with today")),
    ),
    (
        "parking lot",
        ("the number of spaces", "the cars inside", "the hourly price", "the opening hours"),
        (("enter", "adds a car if there is room"), ("leave", "computes the fee to pay")),
    ),
    (
        "student",
        ("the name", "a list of grades", "the year", "the courses taken"),
        (("average", "returns the mean grade"), ("add_grade", "checks and stores a grade")),
    ),
    (
        "thermostat",
        ("the target temperature", "the current temperature", "the mode", "the room"),
        (("update", "switches heating on or off"), ("set_target", "limits the target to 30")),
    ),
    (
        "playlist",
        ("the name", "a list of songs", "the owner", "the current position"),
        (("next", "moves on to the next song"), ("duration", "adds up the length of all songs")),
    ),
    (
        "inventory",
        ("the products", "the quantities", "the warehouse", "a minimum stock"),
        (("restock", "raises a quantity"), ("low_items", "lists products below the minimum")),
    ),
    (
        "chess clock",
        ("the time of both players", "whose turn it is", "the increment", "the moves made"),
        (("press", "switches to the other player"), ("winner", "says who still has time")),
    ),
    (
        "elevator",
        ("the current floor", "the direction", "the waiting calls", "the number of floors"),
        (("call", "stores a floor to visit"), ("step", "moves one floor towards the next call")),
    ),
    (
        "recipe",
        ("the name", "the ingredients", "the number of servings", "the cooking time"),
        (("scale", "changes all amounts for more guests"), ("shopping_list", "lists what to buy")),
    ),
    (
        "temperature log",
        ("a list of readings", "the unit", "the place", "the time of each reading"),
        (("highest", "returns the warmest reading"), ("to_fahrenheit", "converts all readings")),
    ),
    (
        "ticket queue",
        ("the open tickets", "the priorities", "the agents", "the closed tickets"),
        (("take", "returns the most urgent ticket"), ("close", "moves a ticket to the archive")),
    ),
    (
        "vending machine",
        ("the drinks", "the prices", "the coins inside", "the amount paid"),
        (("insert", "adds a coin to the amount paid"), ("buy", "gives a drink and the change")),
    ),
    (
        "robot",
        ("the position", "the direction", "the battery level", "the commands received"),
        (("move", "goes one step forward"), ("turn_left", "changes the direction")),
    ),
    (
        "hotel room",
        ("the number", "the price per night", "the guest", "the number of beds"),
        (("book", "fails if there is a guest"), ("bill", "returns the price for several nights")),
    ),
)
"""(what it is, its fields, (method, what it does))."""

SNIPPETS = (
    "{variable} = []\nfor i in range({n:3-12}):\n    if i % {m:2-4} == 0:\n"
    "        {variable}.append(i * {k:2-9})\nprint({variable})",
    "{variable} = 0\nwhile {variable} < {n:10-90}:\n    {variable} += {m:3-9}\nprint({variable})",
    'words = ["{noun}", "{noun2}", "{noun3}"]\nprint(sorted(words, key=len)[{n:0-2}])',
    "def f(n):\n    return 1 if n < 2 else n * f(n - 1)\n\nprint(f({n:3-8}))",
    "{variable} = {{}}\nfor word in text.split():\n"
    "    {variable}[word] = {variable}.get(word, 0) + 1",
    "numbers = [{a:1-30}, {b:1-30}, {c:1-30}, {d:1-30}]\nprint(max(numbers) - min(numbers))",
    "a, b = 0, 1\nfor _ in range({n:4-12}):\n    a, b = b, a + b\nprint(a)",
    "{noun} = [x ** {n:2-3} for x in range({m:4-12}) if x % 2]\nprint(sum({noun}))",
    'text = "{pattern}"\nprint(text[::-1].lower(), len(text) * {n:2-6})',
    "def find({noun}, target):\n    for i, item in enumerate({noun}):\n"
    "        if item == target:\n            return i\n    return -1",
    "from collections import Counter\n\nprint(Counter({noun}).most_common({n:2-9}))",
    'with open("{noun}.{extension}") as file:\n    {variable} = [line.strip() for line in file]\n'
    "print(len({variable}))",
    "def outer({variable}):\n    def inner(x):\n        return x + {variable}\n"
    "    return inner\n\nprint(outer({n:2-30})({m:2-30}))",
    "for i in range({n:2-6}):\n    for j in range(i):\n        print(i, j)",
)

BUGS = (
    (
        "return the largest number of a list",
        "def largest({noun}):\n    best = 0\n    for x in {noun}:\n        if x > best:\n"
        "            best = x\n    return best",
    ),
    (
        "count the even numbers",
        "def count_even({noun}):\n    {variable} = 0\n    for x in {noun}:\n        if x % 2:\n"
        "            {variable} += 1\n    return {variable}",
    ),
    (
        "add an item to a new list",
        "def add(item, {noun}=[]):\n    {noun}.append(item)\n    return {noun}",
    ),
    (
        "return the average",
        "def average({noun}):\n    {variable} = 0\n    for x in {noun}:\n        {variable} = x\n"
        "    return {variable} / len({noun})",
    ),
    (
        "print the numbers from 1 to 10",
        "for {variable} in range(1, 10):\n    print({variable})",
    ),
    (
        "remove all empty texts from a list",
        "def clean({noun}):\n    for x in {noun}:\n        if x == '':\n"
        "            {noun}.remove(x)\n    return {noun}",
    ),
    (
        "compute a factorial",
        "def factorial({variable}):\n    return {variable} * factorial({variable} - 1)",
    ),
    (
        "check whether a word is a palindrome",
        "def is_palindrome(word):\n    return word == word.reverse()",
    ),
    (
        "find the position of an item",
        "def position({noun}, item):\n    for i in range(len({noun})):\n"
        "        if {noun}[i] == item:\n            return i\n        return -1",
    ),
    (
        "read a number and double it",
        '{variable} = input("Number: ")\nprint({variable} * {n:2-9})',
    ),
    (
        "swap two entries of a list",
        "def swap({noun}, i, j):\n    {noun}[i] = {noun}[j]\n    {noun}[j] = {noun}[i]",
    ),
    (
        "stop when the total passes a limit",
        "{variable} = 0\nwhile {variable} < {n:50-500/10}:\n    print({variable})",
    ),
)
"""(what it should do, code that does not)."""

COMMANDS = (
    "find all .{extension} files in {folder} that changed in the last {n:2-30} days",
    "count the lines of all .{extension} files in {folder}",
    "show the {n:5-50/5} largest files in {folder}",
    "search for {pattern} in every .{extension} file below {folder}",
    "replace {pattern} with {pattern2} in a .{extension} file",
    "list the {n:3-20} processes that use the most memory",
    "delete .{extension} files in {folder} older than {n:7-90} days",
    "show the last {n:10-200/10} lines of a .{extension} file and follow it",
    "copy {folder} to {host} with rsync",
    "pack {folder} into a compressed archive, leaving out .{extension} files",
    "count how often {pattern} occurs in a .{extension} file",
    "change the owner of {folder} to {user}",
    "sort a .{extension} file by its column number {n:2-9}",
    "print column number {n:1-9} of a comma separated file",
    "show which process listens on port {n:3000-9000/10}",
    "check every {n:2-60} seconds whether {host} answers",
    "rename all .{extension} files in {folder} to .{extension2}",
    "show how much disk space {folder} uses",
    "find empty folders below {folder}",
    "run a script every day at {n:1-23} o'clock as the user {user}",
)

CONCEPTS = listed(
    "recursion,a closure,a generator,an iterator,error handling,a lambda,a linked list,"
    "a hash map,a stack,a queue,inheritance,an interface,a decorator,a unit test,"
    "string formatting,sorting with a key,a regular expression,a thread,a lock,"
    "an asynchronous call,pattern matching,a set,a tuple,a default argument,variable scope,"
    "type conversion,reading a file,list slicing,a binary tree,memoization,an enumeration,"
    "operator overloading,dependency injection,a callback,a constant,integer division,"
    "deep and shallow copies,a variadic function,null values,a module"
)
