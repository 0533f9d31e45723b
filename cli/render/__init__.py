"""How what the command says looks: tables, pictures, traces, words."""
