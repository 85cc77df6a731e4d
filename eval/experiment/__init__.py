"""The experiment: networks x tasks x ways x budgets x seeds, resumed cell by cell, compared and reported."""
