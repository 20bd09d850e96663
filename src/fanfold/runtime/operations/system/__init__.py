"""This installation and this project: is it sound, what can go, does it keep its promises."""
