"""Published fits made again from their data: one module a study, published numbers beside ours."""
