"""Pages of plots and tables: parts as plain data, and their HTML, pictures, CSV and Markdown."""
