"""Made-up tables for the SQL domain.

A table is one line: its name, what one row is called in plural, and its columns. A column is
`name:type:kind`, with the kinds

    key            primary key                  num(words|low-high)   number and how to speak of it
    text(words)    free text                    cat(words|a/b/c)      category with its values
    date(words)    date
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column and how questions speak of it."""

    name: str
    sql_type: str
    kind: str
    words: str = ""
    values: tuple[str, ...] = ()
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table and what its rows are called."""

    name: str
    rows: str
    columns: tuple[Column, ...]

    def of_kind(self, *kinds: str) -> list[Column]:
        """Return the columns of some kinds, in order."""
        return [column for column in self.columns if column.kind in kinds]


_TABLES = """
employees|employees|name:TEXT:text(name) salary:INTEGER:num(salary,20-120) \
department:TEXT:cat(department,Sales/Finance/Support/Research) hired_on:DATE:date(hiring date) \
city:TEXT:cat(city,Lisbon/Oslo/Quito)
books|books|title:TEXT:text(title) author:TEXT:text(author) \
pages:INTEGER:num(number of pages,80-900) genre:TEXT:cat(genre,mystery/poetry/history/travel) \
published_on:DATE:date(publication date)
orders|orders|customer:TEXT:text(customer) amount:REAL:num(amount,10-900) \
status:TEXT:cat(status,open/shipped/cancelled) ordered_on:DATE:date(order date) \
country:TEXT:cat(country,Norway/Ghana/Peru/Japan)
flights|flights|flight_number:TEXT:text(flight number) distance_km:INTEGER:num(distance,300-9000) \
airline:TEXT:cat(airline,Indigo/Polar/Sunline) departs_on:DATE:date(departure date) \
seats:INTEGER:num(number of seats,50-380)
songs|songs|title:TEXT:text(title) artist:TEXT:text(artist) \
length_seconds:INTEGER:num(length,90-480) genre:TEXT:cat(genre,jazz/folk/rock/ambient) \
plays:INTEGER:num(number of plays,100-90000)
students|students|name:TEXT:text(name) grade:INTEGER:num(grade,1-100) \
major:TEXT:cat(major,biology/law/design/physics) enrolled_on:DATE:date(enrolment date) \
credits:INTEGER:num(number of credits,10-180)
patients|patients|name:TEXT:text(name) age:INTEGER:num(age,1-95) \
ward:TEXT:cat(ward,north/south/children) admitted_on:DATE:date(admission date) \
weight_kg:REAL:num(weight,20-140)
products|products|name:TEXT:text(name) price:REAL:num(price,2-900) stock:INTEGER:num(stock,0-500) \
category:TEXT:cat(category,toys/garden/kitchen/sports) added_on:DATE:date(date added)
movies|movies|title:TEXT:text(title) director:TEXT:text(director) rating:REAL:num(rating,1-10) \
genre:TEXT:cat(genre,comedy/drama/thriller/western) released_on:DATE:date(release date)
restaurants|restaurants|name:TEXT:text(name) stars:INTEGER:num(number of stars,1-5) \
cuisine:TEXT:cat(cuisine,Thai/Italian/Mexican/Indian) opened_on:DATE:date(opening date) \
seats:INTEGER:num(number of seats,12-200)
houses|houses|address:TEXT:text(address) price:INTEGER:num(price,90000-900000) \
bedrooms:INTEGER:num(number of bedrooms,1-7) district:TEXT:cat(district,Harbor/Hillside/Old Town) \
listed_on:DATE:date(listing date)
players|players|name:TEXT:text(name) goals:INTEGER:num(number of goals,0-60) \
team:TEXT:cat(team,Rovers/Comets/Badgers) position:TEXT:cat(position,keeper/defender/striker) \
age:INTEGER:num(age,16-40)
tickets|support tickets|subject:TEXT:text(subject) priority:TEXT:cat(priority,low/normal/urgent) \
opened_on:DATE:date(opening date) agent:TEXT:text(agent) \
minutes_open:INTEGER:num(time open in minutes,5-5000)
trips|trips|driver:TEXT:text(driver) distance_km:REAL:num(distance,1-120) \
fare:REAL:num(fare,4-200) payment:TEXT:cat(payment method,cash/card/app) \
started_on:DATE:date(start date)
plants|plants|name:TEXT:text(name) height_cm:INTEGER:num(height,5-300) \
light:TEXT:cat(light requirement,shade/half shade/full sun) planted_on:DATE:date(planting date) \
price:REAL:num(price,2-80)
museums|museums|name:TEXT:text(name) visitors:INTEGER:num(number of visitors,1000-900000) \
city:TEXT:cat(city,Prague/Lima/Osaka) founded_on:DATE:date(founding date) \
entry_fee:REAL:num(entry fee,0-30)
courses|courses|title:TEXT:text(title) teacher:TEXT:text(teacher) \
hours:INTEGER:num(number of hours,4-120) level:TEXT:cat(level,beginner/intermediate/advanced) \
starts_on:DATE:date(start date)
accounts|accounts|owner:TEXT:text(owner) balance:REAL:num(balance,100-90000) \
kind:TEXT:cat(kind of account,savings/checking/business) opened_on:DATE:date(opening date) \
branch:TEXT:cat(branch,Central/Station/Airport)
cars|cars|model:TEXT:text(model) mileage:INTEGER:num(mileage,1000-250000) \
fuel:TEXT:cat(fuel,petrol/diesel/electric) price:INTEGER:num(price,900-60000) \
registered_on:DATE:date(registration date)
events|events|title:TEXT:text(title) city:TEXT:cat(city,Dublin/Hanoi/Turin) \
attendees:INTEGER:num(number of attendees,10-9000) held_on:DATE:date(event date) \
kind:TEXT:cat(kind of event,concert/fair/lecture)
recipes|recipes|name:TEXT:text(name) minutes:INTEGER:num(cooking time in minutes,5-240) \
course:TEXT:cat(course,starter/main/dessert) calories:INTEGER:num(number of calories,80-1200) \
added_on:DATE:date(date added)
animals|animals|name:TEXT:text(name) species:TEXT:cat(species,otter/lynx/heron/ibex) \
weight_kg:REAL:num(weight,1-250) arrived_on:DATE:date(arrival date) age:INTEGER:num(age,0-30)
invoices|invoices|client:TEXT:text(client) total:REAL:num(total,50-20000) \
status:TEXT:cat(status,paid/overdue/draft) due_on:DATE:date(due date) \
currency:TEXT:cat(currency,EUR/USD/JPY)
sensors|sensors|label:TEXT:text(label) temperature:REAL:num(temperature,1-60) \
room:TEXT:cat(room,cellar/lab/office) humidity:REAL:num(humidity,10-95) \
measured_on:DATE:date(measuring date)
packages|packages|recipient:TEXT:text(recipient) weight_kg:REAL:num(weight,1-30) \
carrier:TEXT:cat(carrier,Swift/Parcelway/Bluebird) sent_on:DATE:date(shipping date) \
zone:TEXT:cat(zone,domestic/overseas)
articles|articles|headline:TEXT:text(headline) author:TEXT:text(author) \
words:INTEGER:num(number of words,200-4000) section:TEXT:cat(section,science/culture/economy) \
printed_on:DATE:date(print date)
reservations|reservations|guest:TEXT:text(guest) nights:INTEGER:num(number of nights,1-21) \
room_type:TEXT:cat(room type,single/double/suite) arrives_on:DATE:date(arrival date) \
price:REAL:num(price,40-2500)
volunteers|volunteers|name:TEXT:text(name) hours:INTEGER:num(number of hours,1-200) \
project:TEXT:cat(project,library/shelter/river cleanup) joined_on:DATE:date(joining date) \
age:INTEGER:num(age,16-80)
farms|farms|owner:TEXT:text(owner) hectares:REAL:num(area in hectares,2-900) \
crop:TEXT:cat(crop,wheat/barley/olives/maize) region:TEXT:cat(region,north/coast/valley) \
founded_on:DATE:date(founding date)
donations|donations|donor:TEXT:text(donor) amount:REAL:num(amount,5-5000) \
campaign:TEXT:cat(campaign,school roof/new wells/winter coats) given_on:DATE:date(donation date)
"""

_COLUMN = re.compile(r"(\w+):(\w+):(\w+)\(([^),]+)(?:,([^)]+))?\)")


def read_tables() -> tuple[Table, ...]:
    """Return all tables, each with its primary key first."""
    return tuple(_table(line) for line in _TABLES.strip().split("\n"))


def _table(line: str) -> Table:
    name, rows, columns = line.split("|")
    key = Column("id", "INTEGER PRIMARY KEY", "key", "id")
    return Table(name, rows, (key, *(_column(*found) for found in _COLUMN.findall(columns))))


def _column(name: str, sql_type: str, kind: str, words: str, detail: str) -> Column:
    if kind == "num":
        low, high = (int(bound) for bound in detail.split("-"))
        return Column(name, sql_type, kind, words, low=low, high=high)
    return Column(name, sql_type, kind, words, values=tuple(filter(None, detail.split("/"))))


PARENTS = (
    ("customers", "customers", "customer", "orders invoices reservations packages"),
    ("teachers", "teachers", "teacher", "courses students events"),
    ("publishers", "publishers", "publisher", "books articles songs"),
    ("owners", "owners", "owner", "houses cars animals plants farms"),
    ("suppliers", "suppliers", "supplier", "products packages invoices"),
    ("companies", "companies", "company", "employees trips flights donations"),
    ("studios", "studios", "studio", "movies songs events"),
    ("clinics", "clinics", "clinic", "patients sensors"),
    ("clubs", "clubs", "club", "players volunteers events"),
)
"""Second tables for joins: table, rows in plural, singular, and the tables that can refer to it."""
