"""Word lists that several domains draw from."""

from aurora_core.traffic.prompts.template import listed

PEOPLE = listed(
    "Amina,Bruno,Carla,Dmitri,Elif,Farid,Greta,Hana,Ivan,Jonas,Kofi,Leila,Mateo,Nadia,Omar,"
    "Priya,Quentin,Rosa,Samir,Tessa,Ulrich,Vera,Wanda,Xavier,Yuki,Zofia,Anton,Bianca,"
    "Cedric,Dalia,Emil,Freya,Gustavo,Helga,Idris,Julia,Karim,Lucia,Malik,Nora,Oskar,Paula,"
    "Rafael,Sofia,Tariq,Ursula,Viktor,Willa,Yara,Zeno"
)
"""Given names."""

PLACES = listed(
    "Lisbon,Nairobi,Osaka,Toronto,Vienna,Lima,Oslo,Accra,Prague,Dublin,Hanoi,Tallinn,"
    "Seville,Busan,Bergen,Quito,Krakow,Leeds,Tunis,Porto,Zagreb,Denver,Perth,Malmo,Ghent,"
    "Rabat,Turin,Salzburg,Montreal,Kyoto"
)
"""Cities."""

FIRMS = (
    "Harbor Foods",
    "Northlight Energy",
    "Pinecrest Mills",
    "Blue Kettle Coffee",
    "Alder Robotics",
    "Quarry Stone Group",
    "Redfern Textiles",
    "Silver Birch Bank",
    "Tidewater Shipping",
    "Umber Paints",
    "Vesper Hotels",
    "Willow Health",
    "Crane Logistics",
    "Delta Glass",
    "Ember Software",
    "Fjord Seafood",
    "Granite Insurance",
    "Hazel Books",
    "Indigo Airlines",
    "Juniper Toys",
    "Kestrel Motors",
    "Lantern Media",
    "Maple Furniture",
    "Nimbus Cloud",
    "Orchard Pharma",
)
"""Made-up companies."""
