"""Calls of operators: facts about the overload, arguments as text and layouts, and the launches that a call makes."""
