"""The admin port: its application, the state that it shows, and the changes that it takes."""
