"""`headrace bench server`: what HTTP, chat templates, JSON and event streams cost beside the engine behind them."""
