"""Building blocks of secure sums: pure functions of keys, secrets and bytes; nothing here sends, stores or waits."""
