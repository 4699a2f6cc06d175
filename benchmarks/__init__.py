"""Speed, accuracy and size of everypair beside its neighbours, as tidy rows."""
